# SPDX-License-Identifier: BSD-3-Clause
"""Seeds of what the tests in Python draw, and how close their numbers must be.

HEED_TEST_SEED, an integer, is added to every seed: a test that passes by chance fails with another.
"""

import os
import random
import unittest

MOVE = int(os.environ.get("HEED_TEST_SEED", "0"))


def moved(seed):
    """What to give a generator of random numbers as `seed`."""
    return (seed + MOVE) % 2**63


def seed_all(seed=0):
    import torch  # which not every test needs

    torch.manual_seed(moved(seed))
    random.seed(moved(seed))


class SeededTest(unittest.TestCase):
    """Its tests draw the same numbers alone and after others."""

    def setUp(self):
        super().setUp()
        seed_all()


def assert_close(found, expected, tolerance, message=None):
    """Within `tolerance` of the largest finite value that is expected."""
    import torch

    expected = torch.as_tensor(expected)
    sizes = expected.detach().abs().double()
    sizes = sizes[sizes.isfinite()]
    largest = sizes.max().item() if sizes.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * largest, msg=message)
