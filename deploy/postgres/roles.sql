-- The roles of one installation, for whoever may make roles. Run it as an administrator, as often as you like:
--   psql -d aivideo -f deploy/postgres/roles.sql
-- with other names: -v service=… -v reader=…; with the service's login: -v login=…. It makes the group roles; what they may do is
-- granted by `aivideo migrate`. Logins are yours to make: CREATE ROLE name LOGIN PASSWORD '…'; the one that owns the database
-- migrates.
\set ON_ERROR_STOP on
\if :{?service} \else \set service aivideo_service \endif
\if :{?reader} \else \set reader aivideo_reader \endif

SELECT format('CREATE ROLE %I NOLOGIN', name) FROM unnest(ARRAY[:'service', :'reader']) AS name
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec

-- So that `aivideo status` can name a session that holds readers or the clean-up back, whoever's it is. It shows the text of
-- statements too; ours carry their values apart from it.
GRANT pg_read_all_stats TO :"service";

\if :{?login}
GRANT :"service" TO :"login";
\endif
