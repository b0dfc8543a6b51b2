// SPDX-License-Identifier: BSD-3-Clause
#include "models/pretrained/rope.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"

namespace heed::detail {

namespace {

constexpr auto kOriginal = "original_max_position_embeddings";

/// The values from which each type of scaling is made.
struct RopeSource {
  const Config& parameters;
  int64_t max_length, original_length;

  /// The factor; where it is null, the ratio of the lengths.
  double factor_or_ratio() const {
    return parameters.number_or_null("factor").value_or(static_cast<double>(max_length) /
                                                        static_cast<double>(original_length));
  }
  double factor() const { return parameters.number("factor", std::nullopt); }
};

RotaryScaling yarn(const RopeSource& source) {
  const auto& parameters = source.parameters;
  if (!parameters.has("factor")) parameters.refuse("factor", "must be there");
  YarnScaling scaling(source.factor_or_ratio(), source.original_length);
  // 0 counts as null, as in transformers.
  const auto not_zero = [&](const char* name) {
    return parameters.number_or_null(name).value_or(0.0);
  };
  if (const auto fast = not_zero("beta_fast"); fast != 0.0) scaling.beta_fast(fast);
  if (const auto slow = not_zero("beta_slow"); slow != 0.0) scaling.beta_slow(slow);
  scaling.attention_factor(parameters.number_or_null("attention_factor"))
      .mscale(not_zero("mscale"))
      .mscale_all_dim(not_zero("mscale_all_dim"));
  scaling.truncate(parameters.boolean("truncate", true));
  parameters.ignore({"finetuned"});
  return scaling;
}

RotaryScaling llama3(const RopeSource& source) {
  const auto& parameters = source.parameters;
  return Llama3Scaling(source.factor(), source.original_length)
      .low_freq_factor(parameters.number("low_freq_factor", std::nullopt))
      .high_freq_factor(parameters.number("high_freq_factor", std::nullopt));
}

RotaryScaling longrope(const RopeSource& source) {
  const auto& parameters = source.parameters;
  const auto short_factors = parameters.numbers("short_factor");
  LongRopeScaling scaling(short_factors, parameters.numbers("long_factor"), source.original_length);
  const auto factor = source.factor_or_ratio();
  const auto derived =
      factor <= 1.0 ? 1.0
                    : std::sqrt(1.0 + std::log(factor) /
                                          std::log(static_cast<double>(source.original_length)));
  return scaling.attention_factor(parameters.number_or_null("attention_factor").value_or(derived));
}

using ScalingReader = RotaryScaling (*)(const RopeSource&);

const std::map<std::string, ScalingReader>& scaling_readers() {
  static const std::map<std::string, ScalingReader> readers = {
      {"linear",
       [](const RopeSource& source) -> RotaryScaling { return LinearScaling(source.factor()); }},
      {"dynamic",
       [](const RopeSource& source) -> RotaryScaling {
         return NtkScaling(source.factor()).original_length(source.max_length);
       }},
      {"yarn", yarn},
      {"llama3", llama3},
      {"longrope", longrope},
  };
  return readers;
}

/// The type of scaling, from "rope_type" or its older name "type".
std::string rope_type(const Config& parameters, bool only_longrope) {
  const auto older = parameters.text("type", "default");
  auto type = parameters.text("rope_type", older);
  const auto* const name = parameters.has("rope_type") ? "rope_type" : "type";
  if (only_longrope) {
    if (type == "su" || type == "yarn") return "longrope";
    if (type != "default" && type != "longrope") {
      parameters.refuse(name, "is not supported (default, longrope)");
    }
  } else if (type != "default" && scaling_readers().count(type) == 0) {
    parameters.refuse(name, "is not supported (default, linear, dynamic, yarn, llama3, longrope)");
  }
  return type;
}

/// The object that describes the embedding, if there is one, and whether it is an older file's.
std::pair<Config, bool> rope_parameters(const Config& config) {
  auto newer = config.object("rope_parameters");
  if (config.is_part("rope_scaling", "rope_parameters")) return {std::move(newer), false};
  auto older = config.object("rope_scaling");
  if (older.empty()) return {std::move(newer), false};
  if (!newer.empty()) config.refuse("rope_scaling", "must agree with rope_parameters");
  return {std::move(older), true};
}

bool has_original_length(const std::string& type) {
  return type == "yarn" || type == "llama3" || type == "longrope";
}

void check_agrees(const Config& config, const char* name, double value) {
  if (config.number(name, value) == value) return;
  config.refuse(name, fmt::format("must be {}, by another field", value));
}

/// A field of the parameters or, by its older name, of the file; if both are there, they must
/// agree.
double parameter(const Config& config, const Config& parameters, const char* name,
                 const char* older_name, double otherwise) {
  const auto value = parameters.number(name, config.number(older_name, otherwise));
  check_agrees(config, older_name, value);
  return value;
}

/// The base of the angles.
double theta_of(const Config& config, const Config& parameters, const char* older_name,
                double otherwise) {
  constexpr auto kTheta = "rope_theta";
  const auto theta = parameter(config, parameters, kTheta, older_name, otherwise);
  if (theta > 1.0) return theta;
  const bool is_newer = parameters.has(kTheta);
  (is_newer ? parameters : config).refuse(is_newer ? kTheta : older_name, "must be above 1");
}

/// The part of each head that is rotated.
double partial_factor(const Config& config, const Config& parameters, const RopeFields& fields) {
  constexpr auto kPartial = "partial_rotary_factor";
  const auto partial = parameter(config, parameters, kPartial, fields.partial_name, fields.partial);
  const auto refuse = [&](const char* rule) {
    if (parameters.has(kPartial)) parameters.refuse(kPartial, rule);
    config.refuse(fields.partial_name, rule);
  };
  if (!fields.may_be_partial && partial != 1.0) refuse("is not supported (1.0)");
  if (partial <= 0.0 || partial > 1.0) refuse("must be above 0 and at most 1");
  return partial;
}

/// Limits head_dim: the frequencies of a rotary embedding take memory, whatever the weights are.
void check_head_dim(const Config& config, int64_t head_dim) {
  constexpr int64_t kMost = 65'536;
  if (head_dim <= kMost) return;
  config.refuse(config.has("head_dim") ? "head_dim" : "hidden_size",
                fmt::format("must make heads of at most {} elements", kMost));
}

RotaryEmbeddingOptions rotary(int64_t head_dim, double theta, const std::string& type,
                              const RopeSource& source) {
  RotaryEmbeddingOptions options(head_dim);
  options.base(theta);
  if (type != "default") options.scaling(scaling_readers().at(type)(source));
  return options;
}

}  // namespace

RotaryEmbeddingOptions read_rope(const Config& config, int64_t head_dim, int64_t max_length,
                                 const RopeFields& fields) {
  check_head_dim(config, head_dim);
  const auto [parameters, is_older] = rope_parameters(config);
  const auto type = rope_type(parameters, fields.only_longrope);
  const auto theta = theta_of(config, parameters, fields.theta_name, fields.theta);
  const auto partial = partial_factor(config, parameters, fields);
  // Some files have these fields beside those of a family's own names.
  check_agrees(config, "rope_theta", theta);
  check_agrees(config, "partial_rotary_factor", partial);
  auto original_length = fields.original_length;
  if (original_length || config.has(kOriginal)) {
    original_length = config.size(kOriginal, original_length);
  }
  if (has_original_length(type)) {
    const auto inner = parameters.size(kOriginal, max_length);
    if (!original_length) original_length = inner;
  }
  auto options =
      rotary(head_dim, theta, type, {parameters, max_length, original_length.value_or(max_length)});
  if (parameters.empty()) options.scaling(fields.scaling);
  const auto rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  if (rotary_dim != head_dim) options.rotary_dim(rotary_dim);
  return options.pairing(fields.pairing);
}

RopesByLayer read_ropes(const Config& config, int64_t head_dim, int64_t max_length,
                        const RopesFields& fields) {
  check_head_dim(config, head_dim);
  const auto read = [&](const Config& parameters, const char* theta_name, double otherwise) {
    const auto type = rope_type(parameters, /*only_longrope=*/false);
    const auto theta = theta_of(config, parameters, theta_name, otherwise);
    parameters.expect("partial_rotary_factor", {"1.0"});
    parameters.expect("truncate", {"true"});  // transformers does not apply it here
    const auto original_length =
        has_original_length(type) ? parameters.size(kOriginal, max_length) : max_length;
    return rotary(head_dim, theta, type, {parameters, max_length, original_length});
  };
  const auto [parameters, is_older] = rope_parameters(config);
  const bool sliding_is_nested = !is_older || !fields.scaling_is_of_both;
  return {read(is_older ? parameters : parameters.object("full_attention"), fields.full_name,
               fields.full),
          read(sliding_is_nested ? parameters.object("sliding_attention") : parameters,
               fields.sliding_name, fields.sliding)};
}

}  // namespace heed::detail
