-- The tables of es-entity's book (quickstart, database tables), for an entity named Attempt.
CREATE TABLE attempts (
  id UUID PRIMARY KEY,
  created_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE attempt_events (
  id UUID NOT NULL REFERENCES attempts(id),
  sequence INT NOT NULL,
  event_type VARCHAR NOT NULL,
  event JSONB NOT NULL,
  context JSONB DEFAULT NULL,
  recorded_at TIMESTAMPTZ NOT NULL,
  UNIQUE(id, sequence)
);

-- The bench's own: the outbox that es-entity leaves to its user, with the columns a relay needs and no more indexes than one.
CREATE TABLE outbox (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  attempt_id UUID NOT NULL,
  topic TEXT NOT NULL,
  payload JSONB NOT NULL,
  deliver_at TIMESTAMPTZ NOT NULL,
  created_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
