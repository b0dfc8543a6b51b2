// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/heed.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iomanip>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "fixture.h"
#include "support/expect.h"

namespace heed::test {
namespace {

/// Both sides round in float32: products of up to 128 terms, softmax, and a second product.
constexpr double kOutputTolerance = 1e-5;
/// Gradients of a sum over all outputs add up to a few hundred such roundings.
constexpr double kGradientTolerance = 1e-4;

using Mask = std::optional<at::Tensor>;
using OutputAndWeights = std::tuple<at::Tensor, at::Tensor>;

struct Sources {
  at::Tensor query, key, value;  // one tensor for self-attention
};

/// A heed module made for a fixture, with its two ways of being called.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const Sources&, const Mask&)> forward;
  std::function<OutputAndWeights(const Sources&, const Mask&)> forward_with_weights;
};

/// A class of a module in originals/, as it was exported, and what computes the same in heed.
struct Row {
  std::string subject, archive, ours;
  NameMap names;
  std::function<Subject(const Fixture&)> make;
};

/// The number of the tutorial that a row's class is from, in the list of docs/documents.md.
int tutorial_of(const Row& row) {
  static const std::map<std::string, int> tutorials = {{"heads", 1},
                                                       {"shared_projections", 2},
                                                       {"single_head", 3},
                                                       {"multi_head", 4},
                                                       {"two_frameworks", 5}};
  return tutorials.at(row.subject);
}

/// GoogleTest would print the bytes.
void PrintTo(const Row& row, std::ostream* stream) { *stream << row.ours; }

template <typename Holder>
Subject single_head(Holder module) {
  return {module.ptr(),
          [module](const Sources& s, const Mask& mask) mutable { return module(s.query, mask); },
          [module](const Sources& s, const Mask& mask) {
            return module->forward_with_weights(s.query, mask);
          }};
}

template <typename Holder>
Subject multi_head(Holder module) {
  return {module.ptr(),
          [module](const Sources& s, const Mask& mask) mutable {
            return module(s.query, s.key, s.value, mask);
          },
          [module](const Sources& s, const Mask& mask) {
            return module->forward_with_weights(s.query, s.key, s.value, mask);
          }};
}

/// For modules whose forward returns the weights.
template <typename Holder, typename Call>
Subject returning_weights(Holder module, Call call) {
  return {
      module.ptr(),
      [module, call](const Sources& s, const Mask& mask) mutable {
        return std::get<0>(call(module, s, mask));
      },
      [module, call](const Sources& s, const Mask& mask) mutable { return call(module, s, mask); }};
}

Subject scaled_dot_product(double temperature) {
  return returning_weights(ScaledDotProductAttention(temperature, 0.0),
                           [](ScaledDotProductAttention& module, const Sources& s,
                              const Mask& mask) { return module(s.query, s.key, s.value, mask); });
}

Subject shared_projections(const Fixture& f) {
  return returning_weights(SelfAttention(f.number("arg.embed_size"), f.number("arg.heads")),
                           [](SelfAttention& module, const Sources& s, const Mask& mask) {
                             return module(s.value, s.key, s.query, mask);
                           });
}

Subject post_norm(const Fixture& f) {
  const auto attention = MultiHeadAttentionOptions(f.number("arg.d_model"), f.number("arg.n_head"))
                             .head_dim(f.number("arg.d_k"))
                             .value_head_dim(f.number("arg.d_v"))
                             .input_bias(false)
                             .output_bias(false)
                             .dropout(0.0);
  return multi_head(ResidualAttention(ResidualAttentionOptions(attention).dropout(0.0)));
}

Subject tutorial(const Fixture& f) {
  const auto bias = f.number("arg.bias") != 0;
  const auto heads = f.number("arg.nheads");
  return multi_head(MultiHeadAttention(MultiHeadAttentionOptions(f.number("arg.E_q"), heads)
                                           .key_emb_dim(f.number("arg.E_k"))
                                           .value_emb_dim(f.number("arg.E_v"))
                                           .head_dim(f.number("arg.E_total") / heads)
                                           .input_bias(bias)
                                           .output_bias(bias)
                                           .dropout(0.0)));
}

Subject any_head_dim(const Fixture& f) {
  return multi_head(
      MultiHeadAttention(MultiHeadAttentionOptions(f.number("arg.d_model"), f.number("arg.n_head"))
                             .head_dim(f.number("arg.d_k"))
                             .value_head_dim(f.number("arg.d_v"))
                             .dropout(0.0)));
}

/// MultiHeadAttention(width, heads) of the arguments that have these names.
std::function<Subject(const Fixture&)> plain(const char* width, const char* heads) {
  return [=](const Fixture& f) {
    return multi_head(MultiHeadAttention(f.number(std::string("arg.") + width),
                                         f.number(std::string("arg.") + heads), 0.0));
  };
}

std::vector<Row> all_rows() {
  const auto emb_dim = [](const Fixture& f) { return f.number("arg.emb_dim"); };
  const auto hidden_dim = [](const Fixture& f) { return f.number("arg.hidden_dim"); };
  std::vector<Row> rows = {
      {"heads",
       "Attention",
       "Attention",
       {},
       [=](const Fixture& f) { return single_head(Attention(emb_dim(f), 0.0)); }},
      {"heads",
       "AttentionV1",
       "AttentionV1",
       {},
       [=](const Fixture& f) { return single_head(AttentionV1(emb_dim(f), 0.0)); }},
      {"heads", "MultiHeadAttention", "MultiHeadAttention", {}, plain("emb_dim", "head_nums")},
      {"heads",
       "GroupQueryAttention",
       "GroupQueryAttention",
       {},
       [=](const Fixture& f) {
         return multi_head(
             GroupQueryAttention(emb_dim(f), f.number("arg.head_num"), f.number("arg.group_num")));
       }},
      {"single_head", "SelfAttenionV1", "Attention", name_maps::query_proj(),
       [=](const Fixture& f) { return single_head(Attention(hidden_dim(f), 0.0)); }},
      {"single_head", "SelfAttenionV2", "AttentionV1", name_maps::proj(),
       [=](const Fixture& f) { return single_head(AttentionV1(hidden_dim(f), 0.0)); }},
      {"single_head", "SelfAttentionV3", "AttentionV1", name_maps::proj(),
       [=](const Fixture& f) { return single_head(AttentionV1(hidden_dim(f), 0.0)); }},
      {"single_head", "SelfAttentionV4", "Attention", name_maps::query_proj(),
       [=](const Fixture& f) { return single_head(Attention(f.number("arg.dim"), 0.0)); }},
  };
  for (const std::string kind : {"_self", "_cross"}) {
    rows.push_back(
        {"shared_projections", "SelfAttention" + kind, "SelfAttention", {}, shared_projections});
    rows.push_back({"shared_projections", "MultiHeadAttention" + kind, "MultiHeadAttention",
                    name_maps::w_q_w_o(), plain("d_model", "num_heads")});
    rows.push_back(
        {"multi_head",
         "ScaledDotProductAttention" + kind,
         "ScaledDotProductAttention",
         {},
         [](const Fixture& f) { return scaled_dot_product(f["arg.temperature"].item<double>()); }});
    rows.push_back({"multi_head", "NativeMultiHeadAttention" + kind, "MultiHeadAttention",
                    name_maps::q_linear_out(), plain("d_model", "heads")});
    rows.push_back({"multi_head", "PostNormMultiHeadAttention" + kind, "ResidualAttention",
                    name_maps::w_qs_fc(), post_norm});
    rows.push_back({"multi_head", "TutorialMultiHeadAttention" + kind, "MultiHeadAttention",
                    name_maps::packed_proj(), tutorial});
    rows.push_back({"two_frameworks",
                    "ScaledDotProductAttention" + kind,
                    "ScaledDotProductAttention",
                    {},
                    [](const Fixture& f) {
                      return scaled_dot_product(std::sqrt(f["arg.d_k"].item<double>()));
                    }});
    rows.push_back({"two_frameworks", "MultiHeadAttention" + kind, "MultiHeadAttention",
                    name_maps::w_q_fc(), any_head_dim});
  }
  rows.push_back({"multi_head", "TutorialMultiHeadAttention_sizes", "MultiHeadAttention",
                  name_maps::q_proj(), tutorial});
  return rows;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kCPU, at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

struct Differences {
  double output = 0.0, gradient = 0.0;
  std::optional<double> weights;  // of a class that computes them
};

/// The differences that every row showed, for the page in docs.
std::vector<std::pair<Row, Differences>>& shown() {
  static std::vector<std::pair<Row, Differences>> rows;
  return rows;
}

/// Calls one case of a fixture and compares output, weights and gradients.
class Comparison {
 public:
  Comparison(const Row& row, const Fixture& fixture, const Subject& subject, at::Device device)
      : row_(row), fixture_(fixture), subject_(subject), device_(device) {
    subject_.module->to(device);
  }

  void compare(const std::string& name) {
    const auto mask = fixture_.mask(name, device_);
    const auto sources = make_sources();
    const auto output = subject_.forward(sources, mask);
    const auto [same, weights] = subject_.forward_with_weights(sources, mask);
    const auto& wanted = fixture_[name + ".output"];
    EXPECT_TRUE(is_close(output, wanted, kOutputTolerance)) << name;
    EXPECT_TRUE(is_close(same, wanted, kOutputTolerance)) << name;
    seen_.output = std::max(seen_.output, largest_difference(output, wanted));
    if (const auto wanted_weights = fixture_.find(name + ".weights")) {
      EXPECT_TRUE(is_close(weights, *wanted_weights, kOutputTolerance)) << name;
      seen_.weights =
          std::max(seen_.weights.value_or(0.0), largest_difference(weights, *wanted_weights));
    }
    compare_gradients(name, output);
  }

  const Differences& seen() const { return seen_; }

 private:
  bool is_self() const {
    return fixture_.find("x") ||
           (fixture_["query"].dim() == 3 && fixture_["query"].sizes() == fixture_["key"].sizes() &&
            fixture_["query"].equal(fixture_["key"]));
  }

  at::Tensor leaf(const std::string& name) {
    leaves_.push_back(fixture_[name].to(device_).detach().clone().requires_grad_());
    leaf_names_.push_back(name);
    return leaves_.back();
  }

  Sources make_sources() {
    leaves_.clear();
    leaf_names_.clear();
    if (is_self()) {
      const auto x = leaf(fixture_.find("x") ? "x" : "query");
      return {x, x, x};
    }
    const auto query = leaf("query");
    const auto key = leaf("key");
    return {query, key, leaf("value")};
  }

  /// Python had three equal inputs where heed has one.
  at::Tensor wanted_input_gradient(const std::string& name, const std::string& input) const {
    const auto gradient = fixture_[name + ".grad." + input];
    if (input != "query" || !is_self()) return gradient;
    return gradient + fixture_[name + ".grad.key"] + fixture_[name + ".grad.value"];
  }

  /// Python's gradients of its parameters, under our names.
  NamedTensors wanted_parameter_gradients(const std::string& name) const {
    const auto prefix = name + ".grad.";
    NamedTensors gradients;
    for (const auto& [key, tensor] : fixture_.all()) {
      const auto input = key.size() > prefix.size() && key.compare(0, prefix.size(), prefix) == 0
                             ? key.substr(prefix.size())
                             : "";
      if (!input.empty() && !fixture_.find(input)) gradients[input] = tensor;
    }
    return row_.names.apply(gradients, *subject_.module);
  }

  void compare_gradients(const std::string& name, const at::Tensor& output) {
    const auto parameters = subject_.module->named_parameters();
    auto inputs = leaves_;
    for (const auto& item : parameters) inputs.push_back(item.value());
    const auto loss = (output * fixture_["loss_weight"].to(device_)).sum();
    const auto gradients = torch::autograd::grad({loss}, inputs);
    const auto check = [&](const std::string& input, const at::Tensor& actual,
                           const at::Tensor& wanted) {
      EXPECT_TRUE(is_close(actual, wanted, kGradientTolerance)) << name << ", " << input;
      seen_.gradient = std::max(seen_.gradient, largest_difference(actual, wanted));
    };
    for (size_t i = 0; i < leaves_.size(); ++i) {
      check(leaf_names_[i], gradients[i], wanted_input_gradient(name, leaf_names_[i]));
    }
    const auto wanted = wanted_parameter_gradients(name);
    EXPECT_EQ(wanted.size(), parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& key = parameters[i].key();
      ASSERT_TRUE(wanted.count(key) == 1) << key;
      check(key, gradients[leaves_.size() + i], wanted.at(key));
    }
  }

  const Row& row_;
  const Fixture& fixture_;
  const Subject& subject_;
  at::Device device_;
  std::vector<at::Tensor> leaves_;
  std::vector<std::string> leaf_names_;
  Differences seen_;
};

class Originals : public ::testing::TestWithParam<Row> {};

INSTANTIATE_TEST_SUITE_P(Rows, Originals, ::testing::ValuesIn(all_rows()), [](const auto& info) {
  return info.param.subject + "_" + info.param.archive;
});

TEST_P(Originals, ComputeWhatTheirPythonComputes) {
  const auto& row = GetParam();
  const auto reason = why_no_fixtures();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const auto stem = fixture_path(row.subject + "/" + row.archive);
  const Fixture fixture(stem + ".fixture.pt");
  const auto subject = row.make(fixture);
  if (!subject.module->parameters().empty()) {
    load_weights(*subject.module, stem + ".pt", LoadOptions().name_map(row.names));
  }
  Differences largest;
  for (const auto device : devices()) {
    for (const bool training : {false, true}) {
      subject.module->train(training);
      Comparison comparison(row, fixture, subject, device);
      for (const auto& name : fixture.cases()) comparison.compare(name);
      const auto& seen = comparison.seen();
      largest = {std::max(largest.output, seen.output), std::max(largest.gradient, seen.gradient),
                 std::max(largest.weights, seen.weights)};
    }
  }
  shown().emplace_back(row, largest);
}

/// Writes the page when HEED_DOCUMENTS_PAGE names a file.
class Page : public ::testing::Environment {
 public:
  void TearDown() override {
    const auto* path = std::getenv("HEED_DOCUMENTS_PAGE");
    if (path == nullptr || shown().empty()) return;
    auto rows = shown();
    std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return tutorial_of(a.first) < tutorial_of(b.first);
    });
    std::ofstream page(path);
    page << kHead << std::scientific << std::setprecision(1);
    for (const auto& [row, seen] : rows) {
      page << "| " << tutorial_of(row) << " | `" << row.archive << "` | `" << row.ours << "` | "
           << seen.output << " | ";
      if (seen.weights) page << *seen.weights;
      page << " | " << seen.gradient << " |\n";
    }
    page << kFoot;
  }

 private:
  static constexpr auto kHead = R"(# Five tutorials and their classes in heed

heed began with five tutorials on attention, which are written in Chinese with code in
Python. It computes their classes in C++, and has its class names, and names such as
`head_nums` and `fc_o`, from them:

1. A text without a title. Its first class has the heading 单头自注意力 ("Single-head
   self-attention"). It has the four classes that heed's classes are named after.
2. 注意力机制 ("The attention mechanism").
3. Self-Attention的公式 ("The formula of self-attention").
4. Self-attention 和 Multi-head attention ("Self-attention and multi-head attention").
5. attention 两种框架实现形式 ("Attention in two frameworks": PyTorch and TensorFlow).

Tutorials 2 to 5 use other names for parameters, which the maps in `name_maps.h` translate.
`tests/parity/originals/` has a Python module for each tutorial, with classes that have the
same parameters and compute the same numbers. In the order of the list, these are `heads.py`,
`shared_projections.py`, `single_head.py`, `multi_head.py` and `two_frameworks.py`.

## Names

Some names in heed look odd or do not agree with each other. They are the names of
tutorial 1. heed keeps them so that its weights load by name and its code is easy to port:

- The number of heads is `head_nums` in `MultiHeadAttention` and `head_num` in
  `GroupQueryAttention`. The number of groups is `group_num`.
- The embedding dim is `emb_dim`.
- The last projection is `fc_out` in `MultiHeadAttention` and `fc_o` in
  `GroupQueryAttention`.
- `AttentionV1` is `Attention` with one projection for queries, keys and values.

`SelfAttention` keeps the names of tutorial 2 in the same way: `embed_size`, `heads`,
`values`, `keys` and `queries`.

## Differences

The table has the largest differences between what each class computes in Python and in
heed, over all its masks, in eval mode and in training mode without dropout. This command
writes this page:
`HEED_DOCUMENTS_PAGE=docs/documents.md build/release/tests/parity/parity_test`.

| tutorial | class there | class here | output | weights | gradients |
|---|---|---|---|---|---|
)";
  static constexpr auto kFoot = R"(
Names end in `_self` for self-attention, in `_cross` for attention between two
sources, and in `_sizes` for sources of different sizes. A class without a figure for
weights does not compute weights, because it calls LibTorch's kernel. The TensorFlow
functions of tutorial 5 correspond to `attend` with `from_hidden(mask)` and to
`multi_head_attention`; `tensorflow_test.cpp` compares them with TensorFlow's results,
to 1e-5.

One difference is intended. If a query's mask hides every key, tutorial 1 gives NaN and
the others give the mean of all values. heed gives 0, and its weights and gradients are 0.
)";
};

const auto* const kPage = ::testing::AddGlobalTestEnvironment(new Page);

}  // namespace
}  // namespace heed::test
