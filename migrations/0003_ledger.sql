-- Refunds, and holds that may expire. The read rows of events of before have nothing refunded and nothing that expires, which is
-- what the defaults say: no rebuild is needed.
ALTER TABLE read_accounts ADD COLUMN refunded bigint NOT NULL DEFAULT 0;
ALTER TABLE read_holds
    ADD COLUMN refunded   bigint NOT NULL DEFAULT 0,
    ADD COLUMN expires_at timestamptz;
