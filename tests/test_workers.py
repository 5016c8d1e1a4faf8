"""What a worker process loads and does before and during an evaluation."""

import os
import subprocess
import sys

LOADS = """
import math, sys
from botorch_delay.demo import digits
from botorch_delay.workers import evaluate, start_worker
start_worker()
done = evaluate(math.hypot, 3, {"x": 3.0}, "names")
assert done.value is None and "TypeError" in done.error and done.trial_id == 3
done = evaluate(lambda x, y: x * y, 4, {"x": 2.0, "y": 1.5}, "names")
assert done.value == 3.0 and done.started <= done.finished and not done.error
assert evaluate(lambda point: point["x"], 5, {"x": 2.0}, "dict").value == 2.0
assert "torch" not in sys.modules and "scipy" not in sys.modules and "sklearn" not in sys.modules
done = evaluate(lambda x: x.sum(), 6, [2.0, 1.5], "float64")
import torch
assert done.value == 3.5 and torch.get_num_threads() == 1
torch.set_num_threads(2)
start_worker()
assert torch.get_num_threads() == 1
"""


def test_a_worker_process_loads_pytorch_only_for_tensors_and_computes_in_one_thread():
    two_threads = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", LOADS], env=two_threads, check=True)
