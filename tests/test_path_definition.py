"""The path where the definition computes it, in a process of its own."""

from helpers import check_python

EVERYTHING = """
import test_path_compile as c
exec(c.FIRST_CALLS)

from kv_rows import ROTATIONS
from latentkv import _library
import test_path as t, test_path_arrangements as a, test_path_autograd as b, test_path_graphs as g
assert _library.backend() == "definition" and _library.instruction_sets() == ()
for rotation in ROTATIONS:
    t.test_same_bits_as_the_definition((torch.bfloat16, torch.float32), "cast_then_gain", rotation)
for layout in ("row", "permuted", "no-rows"):
    a.test_any_leading_strides(layout)
a.test_any_positions("transposed", torch.int32)
a.test_inputs_stay_as_they_are("none", torch.float32)

for rotation in ROTATIONS[:2]:
    b.test_same_bits_as_the_definition((torch.bfloat16, torch.float32), "cast_then_gain", rotation)
for layout in ("row", "permuted"):
    b.test_any_leading_strides(layout)
b.test_the_raw_operators("none", (torch.bfloat16, torch.bfloat16), "vllm_fused")
b.test_gradients_with_any_strides("none", "half_each_step")
g.test_forward_mode_is_refused()

import test_path_modes as m
exec(m.SUBNORMALS + m.SUBNORMAL_GRADIENTS)  # last: the mode of worker threads can't be taken back
"""


def test_the_definition_when_it_is_asked_for():
    # Rows, gradients, first calls and flushing with LATENTKV_BACKEND=definition: same functions,
    # same bits. One process, which takes longer to start than all of this.
    check_python(EVERYTHING, LATENTKV_BACKEND="definition", OMP_NUM_THREADS="1")
