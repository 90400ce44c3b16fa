// The audits of GraphQL over HTTP against the address that is given, a line of JSON each.
import { serverAudits } from 'graphql-http';

const url = process.argv[2];
for (const audit of serverAudits({ url })) {
  const { id, name, status, reason } = await audit.fn();
  console.log(JSON.stringify({ id, name, status, reason }));
}
