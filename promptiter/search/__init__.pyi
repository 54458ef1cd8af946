from promptiter.engine.session import Search as Search
from promptiter.engine.session import Session as Session
from promptiter.runlog.events import Payload as Payload
from promptiter.runlog.events import event_type as event_type
from promptiter.search.cheaper import ModelDownsizing as ModelDownsizing
from promptiter.search.gradient_check import GradientCheck as GradientCheck
from promptiter.search.rounds import BackpropRounds as BackpropRounds
from promptiter.search.shorter import PromptShortening as PromptShortening
