// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// Training with several processes, on LibTorch's c10d: the CMake component `distributed`, target
/// heed::distributed. The guide is docs/distributed.md.

#include <heed/distributed/context_parallel.h>
#include <heed/distributed/data_parallel.h>
#include <heed/distributed/expert_parallel.h>
#include <heed/distributed/mesh.h>
#include <heed/distributed/parallel_linear.h>
#include <heed/distributed/parallelize.h>
#include <heed/distributed/parameter_shards.h>
#include <heed/distributed/process_group.h>
#include <heed/distributed/sharded_grad_scaler.h>
#include <heed/distributed/sharded_weights.h>
#include <heed/distributed/vocab_parallel.h>
#include <heed/distributed/zero_redundancy_optimizer.h>
