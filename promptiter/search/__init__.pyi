from promptiter.engine.session import Session as Session
from promptiter.engine.session import Strategy as Strategy
from promptiter.search.cheaper import CheaperModel as CheaperModel
from promptiter.search.gradient_check import GradientCheck as GradientCheck
from promptiter.search.rounds import BackpropRounds as BackpropRounds
from promptiter.search.shorter import Shorter as Shorter
