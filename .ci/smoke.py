"""Check that an installed package works away from its source tree."""

import pathlib

import torch

import botorch_delay as bd

root = pathlib.Path(bd.__file__).parent
assert "site-packages" in str(root), root
assert (root / "py.typed").exists()
assert not list((root / "benchmarks").glob("*.md"))
opt = bd.BPEDelayOptimizer(bd.FiniteDomain(torch.rand(20, 2).double()), horizon=6)
for _ in range(6):
    trial = opt.ask()
    opt.tell(trial, trial.x.sum().item())
path = pathlib.Path("study.db")
path.unlink(missing_ok=True)
opt.save(path)
assert len(bd.load(path).trials) == 6
print(bd.__version__)
