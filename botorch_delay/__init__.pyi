"""What users import, and from where: for type checkers, and for ``__init__.py``."""

from botorch_delay import benchmarks as benchmarks
from botorch_delay import exceptions as exceptions
from botorch_delay.acquisition import FantasyUpperConfidenceBound as FantasyUpperConfidenceBound
from botorch_delay.acquisition import MaxVariance as MaxVariance
from botorch_delay.confidence.bounds import Confidence as Confidence
from botorch_delay.confidence.bounds import Constants as Constants
from botorch_delay.confidence.bounds import Evidence as Evidence
from botorch_delay.confidence.bounds import FixedBeta as FixedBeta
from botorch_delay.confidence.bounds import HalfWidth as HalfWidth
from botorch_delay.confidence.bounds import RKHSConfidence as RKHSConfidence
from botorch_delay.confidence.bounds import rkhs_bounds as rkhs_bounds
from botorch_delay.confidence.guarantee import Guarantee as Guarantee
from botorch_delay.confidence.information import effective_dimension as effective_dimension
from botorch_delay.confidence.information import information_gain as information_gain
from botorch_delay.delays import ConstantDelay as ConstantDelay
from botorch_delay.delays import DelayLaw as DelayLaw
from botorch_delay.delays import GeometricDelay as GeometricDelay
from botorch_delay.delays import NoDelay as NoDelay
from botorch_delay.delays import PoissonDelay as PoissonDelay
from botorch_delay.delays import SubExponentialDelay as SubExponentialDelay
from botorch_delay.design.greedy import greedy_max_variance as greedy_max_variance
from botorch_delay.domains.box import BoxDomain as BoxDomain
from botorch_delay.domains.domain import Domain as Domain
from botorch_delay.domains.finite import FiniteDomain as FiniteDomain
from botorch_delay.domains.parameters import Choice as Choice
from botorch_delay.domains.parameters import Float as Float
from botorch_delay.domains.parameters import Int as Int
from botorch_delay.domains.space import Space as Space
from botorch_delay.elimination.active_set import ActiveSet as ActiveSet
from botorch_delay.elimination.active_set import FiniteActiveSet as FiniteActiveSet
from botorch_delay.elimination.box_active_set import BoxActiveSet as BoxActiveSet
from botorch_delay.elimination.rounds import GeometricRounds as GeometricRounds
from botorch_delay.elimination.rounds import HorizonRounds as HorizonRounds
from botorch_delay.elimination.rounds import RoundRecord as RoundRecord
from botorch_delay.elimination.rounds import round_lengths as round_lengths
from botorch_delay.gp.delayed_gp import DelayedGP as DelayedGP
from botorch_delay.gp.surrogate import Hyperparameters as Hyperparameters
from botorch_delay.gp.surrogate import Learned as Learned
from botorch_delay.history.empirical_delay import EmpiricalDelay as EmpiricalDelay
from botorch_delay.history.trials import Attached as Attached
from botorch_delay.history.trials import Correction as Correction
from botorch_delay.history.trials import Trial as Trial
from botorch_delay.history.trials import TrialState as TrialState
from botorch_delay.optimizers.acquisition_optimizer import (
    AcquisitionOptimizer as AcquisitionOptimizer,
)
from botorch_delay.optimizers.base import Optimizer as Optimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer as BPEDelayOptimizer
from botorch_delay.optimizers.certificate import Certificate as Certificate
from botorch_delay.optimizers.certifying import CertifyingUCB as CertifyingUCB
from botorch_delay.optimizers.exploit import Exploit as Exploit
from botorch_delay.optimizers.exploit import WithinBudget as WithinBudget
from botorch_delay.optimizers.forecasts import Forecast as Forecast
from botorch_delay.optimizers.forecasts import Straggler as Straggler
from botorch_delay.optimizers.loading import editing as editing
from botorch_delay.optimizers.loading import load as load
from botorch_delay.optimizers.pending import Censor as Censor
from botorch_delay.optimizers.pending import Hallucinate as Hallucinate
from botorch_delay.optimizers.pending import Ignore as Ignore
from botorch_delay.optimizers.pending import KrigingBeliever as KrigingBeliever
from botorch_delay.optimizers.pending import Pending as Pending
from botorch_delay.optimizers.queued import QueuedOptimizer as QueuedOptimizer
from botorch_delay.optimizers.random import RandomOptimizer as RandomOptimizer
from botorch_delay.optimizers.recommendation import Prediction as Prediction
from botorch_delay.optimizers.recommendation import Recommendation as Recommendation
from botorch_delay.optimizers.recommendation import Replicates as Replicates
from botorch_delay.optimizers.rule_model import RuleModel as RuleModel
from botorch_delay.optimizers.rules import UCB as UCB
from botorch_delay.optimizers.rules import BotorchRule as BotorchRule
from botorch_delay.optimizers.rules import Rule as Rule
from botorch_delay.optimizers.rules import ThompsonSampling as ThompsonSampling
from botorch_delay.optimizers.threds import ThreDSOptimizer as ThreDSOptimizer

__version__: str
