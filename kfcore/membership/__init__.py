"""Who takes part in a job: members, views, and how they change while it runs."""

from kfcore.membership.joining import join
from kfcore.membership.member import Member
from kfcore.membership.notice import LeaveOnNotice
from kfcore.membership.roster import ROSTER_KEY, RosterStore, found_job

__all__ = ["ROSTER_KEY", "LeaveOnNotice", "Member", "RosterStore", "found_job", "join"]
