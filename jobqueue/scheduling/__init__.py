"""Recurring jobs: cron expressions and the schedules that a project declares in code."""
