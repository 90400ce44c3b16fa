//! Tables that are made like the read tables, in another schema: what the catalogs say about the one says how to make the
//! other, so that a migration need not be told twice.

use super::{LOCK_MILLIS, RebuildError, SWITCH_PAUSE, was_too_long};
use crate::fold::TABLES;
use sqlx::{AssertSqlSafe, PgConnection};

/// Where the read tables are.
pub(super) const LIVE: &str = "public";
/// Where a rebuild makes the new ones.
pub(super) const NEXT: &str = "read_models_next";
/// Where the old ones are after the switch, until they are dropped.
pub(super) const PREVIOUS: &str = "read_models_previous";

/// So often a drop of tables gives way.
const GIVE_WAY: u32 = 10;

/// The one index that is no constraint's and that the fold looks up by.
const LOOKED_UP_BY: &str = "read_assets_by_task";

fn names() -> Vec<&'static str> {
    TABLES.iter().map(|(table, _)| *table).collect()
}

/// The read tables in a schema, as a list for a statement.
pub(super) fn list(schema: &str) -> String {
    names().iter().map(|table| format!("{schema}.{table}")).collect::<Vec<_>>().join(", ")
}

/// Runs statements that are made of this crate's own names and of what the catalogs say.
pub(super) async fn run(connection: &mut PgConnection, statements: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await?;
    Ok(())
}

/// Removes what a rebuild made or left behind.
///
/// A reader with a plan from before the switch still locks the old tables, one after the other, before it finds out; so does this.
/// Of two that wait for each other it is never the reader that is ended: this gives way first, and tries again. In the end it waits:
/// such readers are gone then, and a worker of autovacuum gives way only to somebody who waits.
pub(super) async fn discard(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    for schema in [NEXT, PREVIOUS] {
        for tries in 0..=GIVE_WAY {
            let wait = if tries < GIVE_WAY { LOCK_MILLIS } else { 0 };
            let drop_it = format!("SET LOCAL lock_timeout = {wait}; DROP SCHEMA IF EXISTS {schema} CASCADE");
            match run(connection, format!("/* rebuild.discard */ {drop_it}")).await {
                Err(error) if was_too_long(&error) && tries < GIVE_WAY => tokio::time::sleep(SWITCH_PAUSE).await,
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
    }
    Ok(())
}

/// Makes the tables empty in a schema, with the constraints and the index that the fold needs.
pub(super) async fn create(connection: &mut PgConnection, schema: &str) -> Result<(), sqlx::Error> {
    for table in names() {
        // Indexes follow by their own names; those that are made "like" get new ones.
        let like = format!("LIKE {LIVE}.{table} INCLUDING ALL EXCLUDING INDEXES");
        run(connection, format!("/* rebuild.create */ CREATE TABLE {schema}.{table} ({like})")).await?;
    }
    let shape = "/* rebuild.shape */
        SELECT format('ALTER TABLE %I.%I SET (%s)', $1, c.relname, array_to_string(c.reloptions, ', '))
          FROM pg_class c JOIN unnest($2::text[]) WITH ORDINALITY AS named (name, place) ON named.name = c.relname
         WHERE c.relnamespace = $3::regnamespace AND c.reloptions IS NOT NULL
        UNION ALL
        SELECT format('ALTER TABLE %I.%I ADD CONSTRAINT %I %s', $1, c.relname, k.conname, pg_get_constraintdef(k.oid))
          FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
         WHERE c.relnamespace = $3::regnamespace AND c.relname = ANY ($2) AND k.contype IN ('p', 'u', 'x')";
    copy(connection, shape, schema).await?;
    copy_indexes(connection, schema, "i.relname = ").await
}

/// Gives the tables the rest of what the read tables have: owner, permissions, comments and the other indexes, which are faster
/// made over rows than kept up while rows come in.
pub(super) async fn finish(connection: &mut PgConnection, schema: &str) -> Result<(), sqlx::Error> {
    copy_indexes(connection, schema, "i.relname <> ").await?;
    let rights = "/* rebuild.rights */
        SELECT format('REVOKE ALL ON %I.%I FROM %s', $1, c.relname, CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END)
          FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) g
         WHERE c.relnamespace = $1::regnamespace AND c.relname = ANY ($2) AND g.grantee <> c.relowner AND $3 <> ''
        UNION ALL
        SELECT format('GRANT %s ON %I.%I TO %s%s', g.privilege_type, $1, c.relname,
                      CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END,
                      CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
          FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) g
         WHERE c.relnamespace = $3::regnamespace AND c.relname = ANY ($2) AND g.grantee <> c.relowner
        UNION ALL
        SELECT format('GRANT %s (%I) ON %I.%I TO %s%s', g.privilege_type, a.attname, $1, c.relname,
                      CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END,
                      CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
          FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid CROSS JOIN LATERAL aclexplode(a.attacl) g
         WHERE c.relnamespace = $3::regnamespace AND c.relname = ANY ($2) AND NOT a.attisdropped
        UNION ALL
        SELECT format('COMMENT ON TABLE %I.%I IS %L', $1, c.relname, obj_description(c.oid, 'pg_class'))
          FROM pg_class c
         WHERE c.relnamespace = $3::regnamespace AND c.relname = ANY ($2) AND obj_description(c.oid, 'pg_class') IS NOT NULL
        UNION ALL
        SELECT format('ALTER TABLE %I.%I OWNER TO %s', $1, c.relname, c.relowner::regrole)
          FROM pg_class c
         WHERE c.relnamespace = $3::regnamespace AND c.relname = ANY ($2) AND c.relowner <> current_user::regrole";
    copy(connection, rights, schema).await
}

async fn copy_indexes(connection: &mut PgConnection, schema: &str, which: &str) -> Result<(), sqlx::Error> {
    let indexes = format!(
        "/* rebuild.indexes */
         SELECT replace(pg_get_indexdef(i.oid), format(' ON %I.%I USING ', $3, c.relname), format(' ON %I.%I USING ', $1, c.relname))
           FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
          WHERE c.relnamespace = $3::regnamespace AND c.relname = ANY ($2) AND {which} '{LOOKED_UP_BY}'
            AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.oid AND k.conrelid = c.oid)"
    );
    copy(connection, &indexes, schema).await
}

/// Runs the statements that a query over the catalogs makes: `$1` is the new schema, `$2` the tables, `$3` the live schema.
async fn copy(connection: &mut PgConnection, query: &str, schema: &str) -> Result<(), sqlx::Error> {
    let statements: Vec<String> = sqlx::query_scalar(AssertSqlSafe(query.to_owned()))
        .bind(schema)
        .bind(names())
        .bind(LIVE)
        .fetch_all(&mut *connection)
        .await?;
    for statement in statements {
        run(connection, statement).await?;
    }
    Ok(())
}

/// Refuses to go on where the new tables are not what the live ones are, or something else hangs on the live ones: a view
/// would go on showing the old rows.
pub(super) async fn compare(connection: &mut PgConnection) -> Result<(), RebuildError> {
    let (live, next) = (describe(connection, LIVE).await?, describe(connection, NEXT).await?);
    let only = |one: &[String], other: &[String]| one.iter().find(|line| !other.contains(line)).cloned();
    if let Some(what) = only(&live, &next).or_else(|| only(&next, &live)) {
        return Err(RebuildError::Unlike(what));
    }
    let hanging: Option<String> = sqlx::query_scalar(
        "/* rebuild.dependents */
         SELECT DISTINCT r.ev_class::regclass::text
           FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
           JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
          WHERE c.relnamespace = $1::regnamespace AND c.relname = ANY ($2) AND r.ev_class <> c.oid ORDER BY 1 LIMIT 1",
    )
    .bind(LIVE)
    .bind(names())
    .fetch_optional(connection)
    .await?;
    hanging.map_or(Ok(()), |view| Err(RebuildError::Dependent(view)))
}

/// Everything that the catalogs say about the read tables in a schema, a line each, without the schema's name.
pub(super) async fn describe(connection: &mut PgConnection, schema: &str) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "/* rebuild.describe */
         WITH t AS (SELECT c.* FROM pg_class c WHERE c.relnamespace = $1::regnamespace AND c.relname = ANY ($2))
         SELECT concat_ws(' ', 'table', relname, 'owner', relowner::regrole, 'options', reloptions::text, relpersistence,
                          relreplident, relrowsecurity, relforcerowsecurity, 'access', relam, 'space', reltablespace,
                          'comment', obj_description(oid, 'pg_class')) FROM t
         UNION ALL
         SELECT concat_ws(' ', 'table', relname, 'allows',
                          CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END, g.privilege_type,
                          g.is_grantable)
           FROM t CROSS JOIN LATERAL aclexplode(coalesce(relacl, acldefault('r', relowner))) g
         UNION ALL
         SELECT concat_ws(' ', 'table', relname, 'column', a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
                          a.attnotnull, a.attidentity, a.attgenerated, a.attstorage, a.attcompression, a.attcollation,
                          'default', pg_get_expr(d.adbin, d.adrelid), 'allows', a.attacl::text,
                          'comment', col_description(t.oid, a.attnum))
           FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
           LEFT JOIN pg_attrdef d ON d.adrelid = t.oid AND d.adnum = a.attnum
         UNION ALL
         SELECT concat_ws(' ', 'table', relname, 'constraint', k.conname, pg_get_constraintdef(k.oid))
           FROM t JOIN pg_constraint k ON k.conrelid = t.oid
         UNION ALL
         SELECT concat_ws(' ', 'table', relname, 'index', replace(pg_get_indexdef(x.indexrelid), format(' ON %I.', $1), ' ON '),
                          x.indisclustered, x.indisreplident, obj_description(x.indexrelid, 'pg_class'))
           FROM t JOIN pg_index x ON x.indrelid = t.oid
         UNION ALL
         SELECT concat_ws(' ', 'table', relname, 'trigger', g.tgname, g.tgenabled) FROM t JOIN pg_trigger g ON g.tgrelid = t.oid
         UNION ALL
         SELECT concat_ws(' ', 'table', relname, 'policy', p.polname) FROM t JOIN pg_policy p ON p.polrelid = t.oid
         UNION ALL
         SELECT concat_ws(' ', 'table', relname, 'published by', p.prpubid) FROM t JOIN pg_publication_rel p ON p.prrelid = t.oid
         ORDER BY 1",
    )
    .bind(schema)
    .bind(names())
    .fetch_all(connection)
    .await
}
