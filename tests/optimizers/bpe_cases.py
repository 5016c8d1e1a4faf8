"""An optimizer on scattered points, its objective, and how answers are told."""

import math

import torch
from cases import normal, scattered, se

import botorch_delay as bd

NOISE = 1e-2


def make(n=60, horizon=100, **options):
    domain = bd.FiniteDomain(scattered(n))
    options = {"covar_module": se(), "noise_var": NOISE} | options
    options = {"exploit": None} | options  # only design points, unless a test sets exploit
    return bd.BPEDelayOptimizer(domain, horizon, **options)


def value(trial):
    return math.sin(7 * trial.x[0].item()) + trial.x[1].item()


def answer(opt, trials):
    for trial in trials:
        opt.tell(trial, value(trial))


def play(opt, asks, lag=4, value=value):
    """Ask and tell, each answer ``lag`` asks late."""
    waiting = list(opt.pending)
    for _ in range(asks):
        waiting.append(opt.ask())
        if len(waiting) > lag:
            trial = waiting.pop(0)
            opt.tell(trial, value(trial))
    return opt


def state_of(opt):
    state = opt.state_dict()
    return str({key: value for key, value in state.items() if key != "points"})


# Noise as large as the function, so that the last asks make a difference.
LARGE_NOISE = 0.3
KERNEL = se()
HORIZON = 60
NOISY = 0.5 * normal(HORIZON, seed=1)


def make_noisy(domain, share=0.5, **options):
    """An optimizer whose last asks, a share of its horizon, serve the recommendation."""
    options = {
        "covar_module": KERNEL,
        "noise_var": LARGE_NOISE,
        "exploit": bd.Exploit(final_fraction=share),
        "explore_fraction": 0.1,
    } | options
    return bd.BPEDelayOptimizer(domain, HORIZON, **options)


def noisy_value(trial):
    return torch.sin(5 * trial.x).sum().item() + NOISY[trial.id].item()


def play_noisy(opt, asks, lag=4):
    return play(opt, asks, lag, noisy_value)
