"""Many ranks: each recording becomes a Summary, and the summaries of a job tell who holds it up and what that costs."""

from __future__ import annotations

from foretrace.ranks.job import read_job
from foretrace.ranks.reduce import Ranks, reduce
from foretrace.ranks.summarise import summarise
from foretrace.ranks.summary import Summary, read_summary

__all__ = ["Ranks", "Summary", "read_job", "read_summary", "reduce", "summarise"]
