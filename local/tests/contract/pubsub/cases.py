"""All cases. Importing a module of cases adds them."""

from local.tests.contract.pubsub import management, messages, pushes, rejections
from local.tests.contract.pubsub.case import CASES, Case

__all__ = ["CASES", "Case", "management", "messages", "pushes", "rejections"]
