from promptiter.sandbox.plan import Changes as Changes
from promptiter.sandbox.plan import CopyPlan as CopyPlan
from promptiter.sandbox.private_copy import PrivateCopy as PrivateCopy
from promptiter.sandbox.sandbox import Sandbox as Sandbox
from promptiter.sandbox.sandbox import find_sandbox as find_sandbox
