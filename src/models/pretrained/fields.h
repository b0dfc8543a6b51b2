// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/feed_forward.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/pretrained/config.h"

namespace heed::detail {

/// The activation that a field names.
Activation read_activation(const Config& config, const std::string& name,
                           const std::string& otherwise);
/// The gated activation that uses the activation that a field names.
Activation read_gated_activation(const Config& config, const std::string& name,
                                 const std::string& otherwise);

/// The activation, or the gated activation, of a name that is the value of a field or made of it;
/// an error names the field.
/// @{
Activation activation_of(const Config& config, const std::string& field, const std::string& name);
Activation gated_activation_of(const Config& config, const std::string& field,
                               const std::string& name);
/// @}

/// For each layer, whether layer_types says that its attention is local; `otherwise` if it does not
/// say.
std::vector<bool> read_local_layers(const Config& config, const std::vector<bool>& otherwise);

/// The side of a square: one number, or its height and its width.
int64_t read_side(const Config& config, const std::string& name, int64_t otherwise);

/// The eps of the norms; at least 0.
double read_norm_eps(const Config& config, const std::string& name, double otherwise);

/// A factor; not 0.
double read_factor(const Config& config, const std::string& name, double otherwise);

/// The softcap of the scores: above 0, or none.
std::optional<double> read_softcap(const Config& config, const std::string& name,
                                   std::optional<double> otherwise);

/// The number of layers, at most 1000.
int64_t read_num_layers(const Config& config, const std::string& name, int64_t otherwise);

}  // namespace heed::detail
