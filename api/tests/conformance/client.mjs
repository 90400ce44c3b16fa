// A frontend as it is usually built: urql, with graphql-ws for subscriptions. Submits a task, reads it, follows it, loses its connection,
// and hears of the end all the same. Says what it saw, a line of JSON each.
import { Client, fetchExchange, subscriptionExchange } from '@urql/core';
import { createClient } from 'graphql-ws';
import WebSocket from 'ws';

const [address, token] = process.argv.slice(2);
const authorization = `Bearer ${token}`;
const say = (what, seen) => console.log(JSON.stringify({ what, seen }));

let socket = null;
const live = createClient({
  url: `ws://${address}/graphql/ws`,
  webSocketImpl: WebSocket,
  connectionParams: { authorization },
  retryAttempts: 20,
  retryWait: () => new Promise((resolve) => setTimeout(resolve, 50)),
  on: {
    connected: (connected) => {
      socket = connected;
      say('connected', null);
    },
  },
});
const client = new Client({
  url: `http://${address}/graphql`,
  fetchOptions: { headers: { authorization } },
  preferGetMethod: false,
  exchanges: [
    fetchExchange,
    subscriptionExchange({
      forwardSubscription: ({ query, variables }) => ({
        subscribe: (sink) => ({ unsubscribe: live.subscribe({ query, variables }, sink) }),
      }),
    }),
  ],
});

const checked = (result) => {
  if (result.error) throw result.error;
  return result.data;
};

const SUBMIT = `mutation Submit($input: GenerationInput!, $key: String!) {
  submitGeneration(input: $input, idempotencyKey: $key) { taskId version refusal { code } } }`;
const READ = `query Read($id: ID!, $version: Int) { task(id: $id, atLeastVersion: $version) { taskId state version hold } }`;
const FOLLOW = `subscription Follow($id: ID!) { taskStatus(taskId: $id) { state version } }`;
const CANCEL = `mutation Cancel($id: ID!) { cancelTask(taskId: $id) { version refusal { code } } }`;

const input = { prompt: 'a paper boat', model: 'aivideo/paper-boat-1', durationSeconds: 4 };
const submitted = checked(await client.mutation(SUBMIT, { input, key: 'once' }).toPromise()).submitGeneration;
say('submitted', submitted);
const { taskId: id, version } = submitted;
say('read', checked(await client.query(READ, { id, version }).toPromise()).task);

let steps = 0;
await new Promise((resolve, reject) => {
  client.subscription(FOLLOW, { id }).subscribe((result) => {
    if (result.error) return reject(result.error);
    // urql says the last result once more when the subscription is complete.
    if (!result.hasNext) return resolve();
    say('followed', result.data.taskStatus);
    steps += 1;
    // The network is gone without a word; graphql-ws connects again and asks again.
    if (steps === 1) socket.terminate();
    if (steps === 2) client.mutation(CANCEL, { id }).toPromise().then(checked).catch(reject);
  });
});
say('read', checked(await client.query(READ, { id, version: 2 }, { requestPolicy: 'network-only' }).toPromise()).task);
await live.dispose();
