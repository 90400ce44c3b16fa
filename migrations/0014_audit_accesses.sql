-- Who looked at what, of those who may look at everything: auditors and operators. One row for each thing that they asked for, written
-- before it is answered. Append-only for everybody, its owner included, as the log is.

CREATE TABLE audit_accesses (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who: `user:…`, and for which tenant their token is.
    actor          text        NOT NULL,
    actor_tenant   uuid        NOT NULL,
    -- The field of the schema, or the route.
    what           text        NOT NULL,
    -- The id that was named, or the filter.
    subject        text        NOT NULL,
    correlation_id uuid        NOT NULL
);
CREATE INDEX audit_accesses_by_subject ON audit_accesses (subject, id);
CREATE INDEX audit_accesses_by_actor ON audit_accesses (actor, id);

CREATE TRIGGER audit_accesses_append_only BEFORE UPDATE OR DELETE ON audit_accesses
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_accesses_no_truncate BEFORE TRUNCATE ON audit_accesses
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
