//! The broker's side of the catalogue: creating what is missing, refusing what is different, counting what waits.

use crate::catalogue::{Catalogue, Group, PhysicalTopic};
use crate::client::{Client, ClientFault, cause, response_code};
use rocketmq_client_rust::{
    ClientError, ClientResult, ConsumerAdmin, ConsumerConnectionRead, ConsumerProgressRead, DefaultMQAdminExt,
    MQAdminConsumerObservationReadExt, RouteAdmin, TopicAdmin,
};
use rocketmq_model::topic::TopicConfig;
use rocketmq_protocol::code::response_code::ResponseCode;
use rocketmq_protocol::protocol::body::consumer_connection::ConsumerConnection;
use rocketmq_protocol::protocol::subscription::subscription_group_config::SubscriptionGroupConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long one administrative call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// How long new topics may take to reach the name server (the broker registers them by itself).
const ROUTE_LIMIT: Duration = Duration::from_secs(40);

/// Read and write, the broker's `PermName.PERM_READ | PERM_WRITE`.
const READ_WRITE: u32 = 6;

/// What brokers answer about a group that never consumed: the group, or its retry topic, is not there.
const NO_PROGRESS: [i32; 3] = [
    ResponseCode::TopicNotExist as i32,
    ResponseCode::SubscriptionGroupNotExist as i32,
    ResponseCode::ConsumerNotOnline as i32,
];

/// Why the broker could not be administered, or is not as the catalogue says.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The client itself can not be used.
    #[error(transparent)]
    Client(#[from] ClientFault),
    /// A question to name server or broker was not answered.
    #[error("the broker did not answer {question}: {cause}")]
    Unanswered {
        /// What was asked or told.
        question: String,
        /// The client's own words.
        cause: String,
    },
    /// The name server knows no broker.
    #[error("the name server knows no broker that takes writes: is it started, and registered with this name server?")]
    NoBroker,
    /// New topics did not become known to the name server in time.
    #[error("topic {0} was created but the name server does not know it yet: is the broker registered with it?")]
    NoRoute(String),
    /// The broker differs from the catalogue.
    #[error("the broker differs from the catalogue: {}", join(.0))]
    Mismatch(Vec<Mismatch>),
}

/// One difference between catalogue and broker, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// A topic does not exist.
    #[error("topic {topic} is missing at {broker}; run ensure, or create it with message.type={expected}")]
    TopicMissing {
        /// The physical topic.
        topic: String,
        /// The broker.
        broker: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// A topic takes another type of message.
    #[error(
        "topic {topic} at {broker} has message.type={found}, expected {expected}; correct the attribute, or drain and delete \
         the topic and run ensure"
    )]
    WrongType {
        /// The physical topic.
        topic: String,
        /// The broker.
        broker: String,
        /// What the broker has; empty for none.
        found: String,
        /// What the catalogue says.
        expected: &'static str,
    },
    /// A group does not exist.
    #[error("consumer group {group} is missing at {broker}; run ensure")]
    GroupMissing {
        /// The physical group.
        group: String,
        /// The broker.
        broker: String,
    },
    /// Live members of a group subscribe to something else: messages would go to members that do not want them, and be lost.
    #[error(
        "consumer group {group} has live members at {broker} that subscribe to [{found}], expected [{expected}]; stop the other \
         version first, or give the new one a new group"
    )]
    OtherSubscription {
        /// The physical group.
        group: String,
        /// The broker.
        broker: String,
        /// What the members subscribe to.
        found: String,
        /// What this version would subscribe to.
        expected: String,
    },
}

fn join(mismatches: &[Mismatch]) -> String {
    mismatches.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What `check` could say about a group's live subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// It has live members and they subscribe to what the catalogue says.
    AsExpected,
    /// No member is connected: there is nothing to differ from.
    NobodyConnected,
    /// This broker can not tell. **Not checked.** Carries the broker's response code.
    Unverified {
        /// The response code, where the broker gave one.
        code: Option<i32>,
    },
}

impl fmt::Display for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsExpected => f.write_str("as expected"),
            Self::NobodyConnected => f.write_str("nobody connected"),
            Self::Unverified { code: Some(code) } => write!(f, "not checked: the broker can not tell (code {code})"),
            Self::Unverified { code: None } => f.write_str("not checked: the broker can not tell"),
        }
    }
}

/// What `ensure` had to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Created {
    /// Physical topics, once per broker.
    pub topics: Vec<String>,
    /// Physical groups, once per broker.
    pub groups: Vec<String>,
}

/// Messages of a topic that a group has not handled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLag {
    /// The group.
    pub group: Group,
    /// The physical topic; `%RETRY%…` holds the messages that are to come again.
    pub topic: String,
    /// How many wait. Delayed messages that are not due are not among them.
    pub waiting: i64,
}

/// Creates the catalogue's topics (with their `message.type`) and groups where they are missing, and waits until the name server
/// knows the topics. What exists is left as it is, right or wrong: [`check`] judges it.
///
/// # Errors
/// [`AdminError`].
pub async fn ensure(client: &Arc<Client>) -> Result<Created, AdminError> {
    let (topics, groups) = (client.catalogue().all_topics(), client.catalogue().all_groups());
    ensure_these(client, topics, groups).await
}

pub(crate) async fn ensure_these(
    client: &Arc<Client>,
    topics: Vec<PhysicalTopic>,
    groups: Vec<String>,
) -> Result<Created, AdminError> {
    let redeliveries = i32::try_from(client.config().max_redeliveries).unwrap_or(i32::MAX);
    with_session(client, move |session| {
        Box::pin(async move {
            let mut created = Created::default();
            for broker in session.brokers().await? {
                for topic in &topics {
                    if session.topic(&broker, &topic.name).await?.is_none() {
                        session.create_topic(&broker, topic).await?;
                        created.topics.push(topic.name.clone());
                    }
                }
                for group in &groups {
                    if !session.group_exists(&broker, group).await? {
                        session.create_group(&broker, group, redeliveries).await?;
                        created.groups.push(group.clone());
                    }
                }
            }
            for topic in &topics {
                session.wait_for_route(&topic.name).await?;
            }
            Ok(created)
        })
    })
    .await
}

/// Compares the broker with the catalogue: every topic with its type, every group, and what live members subscribe to.
///
/// # Errors
/// [`AdminError::Mismatch`] lists every difference with what to do; the others say that the question was not answered.
pub async fn check(client: &Arc<Client>) -> Result<BTreeMap<Group, Subscription>, AdminError> {
    let catalogue = client.catalogue().clone();
    with_session(client, move |session| {
        Box::pin(async move {
            let mut mismatches = Vec::new();
            let mut subscriptions = BTreeMap::new();
            for broker in session.brokers().await? {
                for topic in catalogue.all_topics() {
                    mismatches.extend(session.topic_mismatch(&broker, &topic).await?);
                }
                for group in catalogue.all_groups() {
                    if !session.group_exists(&broker, &group).await? {
                        mismatches.push(Mismatch::GroupMissing { group, broker: broker.clone() });
                    }
                }
                for group in Group::ALL {
                    match session.subscription(&broker, group, &catalogue).await? {
                        Ok(found) => merge(&mut subscriptions, group, found),
                        Err(mismatch) => mismatches.push(mismatch),
                    }
                }
            }
            if mismatches.is_empty() { Ok(subscriptions) } else { Err(AdminError::Mismatch(mismatches)) }
        })
    })
    .await
}

/// Over several brokers the least certain answer wins.
fn merge(all: &mut BTreeMap<Group, Subscription>, group: Group, found: Subscription) {
    let rank = |subscription: &Subscription| match subscription {
        Subscription::NobodyConnected => 0,
        Subscription::AsExpected => 1,
        Subscription::Unverified { .. } => 2,
    };
    let known = all.entry(group).or_insert(Subscription::NobodyConnected);
    if rank(&found) > rank(known) {
        *known = found;
    }
}

/// How many messages wait per group and topic, over all brokers. Groups that never consumed are not in the answer.
///
/// # Errors
/// [`AdminError`].
pub async fn lag(client: &Arc<Client>) -> Result<Vec<GroupLag>, AdminError> {
    let catalogue = client.catalogue().clone();
    with_session(client, move |session| {
        Box::pin(async move {
            let mut waiting: BTreeMap<(Group, String), i64> = BTreeMap::new();
            for broker in session.brokers().await? {
                for group in Group::ALL {
                    for (topic, count) in session.waiting(&broker, &catalogue.group_name(group)).await? {
                        *waiting.entry((group, topic)).or_default() += count;
                    }
                }
            }
            let lag = waiting.into_iter().map(|((group, topic), waiting)| GroupLag { group, topic, waiting });
            Ok(lag.collect())
        })
    })
    .await
}

/// Whether brokers are there and none of them has the topic. Tells a missing topic from a name server that is gone, or that does
/// not know the broker yet: the client says "no route" to all three.
pub(crate) async fn is_missing(client: &Arc<Client>, topic: &str) -> Result<bool, AdminError> {
    let topic = topic.to_owned();
    with_session(client, move |session| {
        Box::pin(async move {
            for broker in session.brokers().await? {
                if session.topic(&broker, &topic).await?.is_some() {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    })
    .await
}

type Work<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T, AdminError>> + Send + 'a>>;

/// Opens an admin session on the client's threads, does the work and closes it, whatever came of it.
async fn with_session<T, W>(client: &Arc<Client>, work: W) -> Result<T, AdminError>
where
    T: Send + 'static,
    W: for<'a> FnOnce(&'a Session) -> Work<'a, T> + Send + 'static,
{
    let (runtime, mut config) = (client.runtime(), client.client_config());
    // Its own connection: closing an admin session must not close the producer's.
    config.set_instance_name(format!("{}-admin", config.instance_name).into());
    client
        .run(async move {
            let mut admin = DefaultMQAdminExt::with_admin_ext_group_and_timeout(runtime, "aivideo_admin", CALL_LIMIT);
            *admin.client_config_mut() = config;
            admin.start().await.map_err(|error| ClientFault::start("an admin session", &error))?;
            let session = Session(admin);
            let outcome = work(&session).await;
            let Session(mut admin) = session;
            admin.shutdown().await;
            outcome
        })
        .await?
}

struct Session(DefaultMQAdminExt);

impl Session {
    /// Addresses of the masters, in a stable order.
    async fn brokers(&self) -> Result<BTreeSet<String>, AdminError> {
        let info = answer("which brokers there are", RouteAdmin::examine_broker_cluster_info(&self.0).await)?;
        let table = info.broker_addr_table.unwrap_or_default();
        let masters: BTreeSet<String> =
            table.values().filter_map(|broker| broker.broker_addrs().get(&0)).map(ToString::to_string).collect();
        if masters.is_empty() { Err(AdminError::NoBroker) } else { Ok(masters) }
    }

    async fn topic(&self, broker: &str, topic: &str) -> Result<Option<TopicConfig>, AdminError> {
        let found = TopicAdmin::examine_topic_config(&self.0, broker.into(), topic.into()).await;
        absent_is_none(format!("what topic {topic} is"), found, ResponseCode::TopicNotExist)
    }

    async fn create_topic(&self, broker: &str, topic: &PhysicalTopic) -> Result<(), AdminError> {
        let mut config = TopicConfig::with_perm(topic.name.as_str(), topic.queues, topic.queues, READ_WRITE);
        // The plus sign is the protocol's "add this attribute".
        config.attributes.insert("+message.type".into(), topic.message_type.attribute().into());
        let told = TopicAdmin::create_and_update_topic_config(&self.0, broker.into(), config).await;
        answer(&format!("the creation of topic {}", topic.name), told)
    }

    async fn wait_for_route(&self, topic: &str) -> Result<(), AdminError> {
        let deadline = tokio::time::Instant::now() + ROUTE_LIMIT;
        loop {
            let route = TopicAdmin::examine_topic_route_info(&self.0, topic.into()).await;
            if matches!(route, Ok(Some(_))) {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                return Err(AdminError::NoRoute(topic.to_owned()));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn topic_mismatch(&self, broker: &str, topic: &PhysicalTopic) -> Result<Option<Mismatch>, AdminError> {
        let expected = topic.message_type.attribute();
        let Some(found) = self.topic(broker, &topic.name).await? else {
            return Ok(Some(Mismatch::TopicMissing { topic: topic.name.clone(), broker: broker.to_owned(), expected }));
        };
        let found = found.attributes.get("message.type").map(ToString::to_string).unwrap_or_default();
        Ok((found != expected).then(|| Mismatch::WrongType {
            topic: topic.name.clone(),
            broker: broker.to_owned(),
            found,
            expected,
        }))
    }

    async fn group_exists(&self, broker: &str, group: &str) -> Result<bool, AdminError> {
        let found = ConsumerAdmin::examine_subscription_group_config(&self.0, broker.into(), group.into()).await;
        absent_is_none(format!("what group {group} is"), found, ResponseCode::SubscriptionGroupNotExist)
            .map(|found| found.is_some_and(|config| config.group_name().as_str() == group))
    }

    async fn create_group(&self, broker: &str, group: &str, redeliveries: i32) -> Result<(), AdminError> {
        let mut config = SubscriptionGroupConfig::new(group.into());
        config.set_retry_max_times(redeliveries);
        config.set_consume_broadcast_enable(false);
        let told = ConsumerAdmin::create_and_update_subscription_group_config(&self.0, broker.into(), config).await;
        answer(&format!("the creation of group {group}"), told)
    }

    async fn subscription(
        &self,
        broker: &str,
        group: Group,
        catalogue: &Catalogue,
    ) -> Result<Result<Subscription, Mismatch>, AdminError> {
        let name = catalogue.group_name(group);
        let read = self.0.consumer_connection_at(broker.into(), name.as_str().into()).await;
        let connection = match read {
            Ok(ConsumerConnectionRead::Online(connection)) => connection,
            Ok(ConsumerConnectionRead::Offline) => return Ok(Ok(Subscription::NobodyConnected)),
            Err(error) => match response_code(&error) {
                Some(code) if code == ResponseCode::ConsumerNotOnline as i32 => {
                    return Ok(Ok(Subscription::NobodyConnected));
                }
                Some(code) => return Ok(Ok(Subscription::Unverified { code: Some(code) })),
                None => return Err(unanswered(&format!("who is connected to group {name}"), &error)),
            },
        };
        let expected: BTreeSet<String> =
            group.topics().iter().map(|topic| format!("{}:*", catalogue.topic_name(*topic))).collect();
        let found = subscribed(&connection);
        Ok(if found == expected {
            Ok(Subscription::AsExpected)
        } else {
            Err(Mismatch::OtherSubscription {
                group: name,
                broker: broker.to_owned(),
                found: found.into_iter().collect::<Vec<_>>().join(", "),
                expected: expected.into_iter().collect::<Vec<_>>().join(", "),
            })
        })
    }

    async fn waiting(&self, broker: &str, group: &str) -> Result<BTreeMap<String, i64>, AdminError> {
        let progress = self.0.consumer_progress_at(broker.into(), group.into()).await;
        let stats = match progress {
            Ok(ConsumerProgressRead::Observed(stats)) => stats,
            Ok(ConsumerProgressRead::Absent) => return Ok(BTreeMap::new()),
            Err(error) if response_code(&error).is_some_and(|code| NO_PROGRESS.contains(&code)) => {
                return Ok(BTreeMap::new());
            }
            Err(error) => return Err(unanswered(&format!("how far group {group} is"), &error)),
        };
        let mut waiting = BTreeMap::new();
        for (queue, offsets) in &stats.offset_table {
            let behind = offsets.get_broker_offset() - offsets.get_consumer_offset().max(0);
            *waiting.entry(queue.topic().to_string()).or_default() += behind.max(0);
        }
        Ok(waiting)
    }
}

/// `topic:expression` of every subscription but the group's own retry topic, which the client adds by itself.
fn subscribed(connection: &ConsumerConnection) -> BTreeSet<String> {
    connection
        .get_subscription_table()
        .iter()
        .filter(|(topic, _)| !topic.starts_with("%RETRY%"))
        .map(|(topic, data)| format!("{topic}:{}", data.sub_string))
        .collect()
}

fn unanswered(question: &str, error: &ClientError) -> AdminError {
    AdminError::Unanswered { question: question.to_owned(), cause: cause(error) }
}

fn answer<T>(question: &str, told: ClientResult<T>) -> Result<T, AdminError> {
    told.map_err(|error| unanswered(question, &error))
}

fn absent_is_none<T>(question: String, told: ClientResult<T>, absent: ResponseCode) -> Result<Option<T>, AdminError> {
    match told {
        Ok(found) => Ok(Some(found)),
        Err(error) if response_code(&error) == Some(absent as i32) => Ok(None),
        Err(error) => Err(unanswered(&question, &error)),
    }
}
