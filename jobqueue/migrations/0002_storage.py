"""Storage settings of the busy tables: room for heap-only renewals, and vacuum that keeps up."""

from django.db import migrations

# A job's row is rewritten at least twice in its life, so dead rows come as fast as jobs. A fixed
# threshold with a small factor keeps the head of the ready index short at any table size.
FORWARD = """
ALTER TABLE jobqueue_job SET (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
ALTER TABLE jobqueue_attempt SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
ALTER TABLE jobqueue_worker SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500
);
ALTER TABLE jobqueue_leaderlease SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500
);
"""
BACKWARD = """
ALTER TABLE jobqueue_job RESET (
    fillfactor,
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold,
    autovacuum_vacuum_cost_delay,
    autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold,
    autovacuum_vacuum_insert_scale_factor
);
ALTER TABLE jobqueue_attempt RESET (
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold,
    autovacuum_vacuum_insert_scale_factor
);
ALTER TABLE jobqueue_worker RESET (
    fillfactor,
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold
);
ALTER TABLE jobqueue_leaderlease RESET (
    fillfactor,
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold
);
"""


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
