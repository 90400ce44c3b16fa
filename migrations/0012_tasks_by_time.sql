-- no-transaction
-- Auditors and operators list the tasks of all tenants by time; without this index each page sorted the whole table.
CREATE INDEX CONCURRENTLY read_tasks_by_time ON read_tasks (created_at DESC, task_id DESC);
