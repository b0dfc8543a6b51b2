// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace heed::bench {

using ResultView = at::Tensor (*)(const at::Tensor&);

/// One way of doing a row's work on its inputs.
template <typename Inputs>
struct Contestant {
  std::string name;
  std::function<at::Tensor(Inputs&)> run;
  /// The least that its time over ours may be: 2 means ours at least twice as fast. 0: none set.
  double target = 0.0;
  /// Views its result in the layout of ours, to compare them; not timed. Undefined: it does a part
  /// of the work only, as a bound.
  ResultView as_ours = nullptr;
  /// Leaves it out, instead of failing the row, if it throws: it does not take these inputs.
  bool may_refuse = false;
  /// Which part of its work ours must do: its time counts by this part.
  double (*share)(const Inputs&) = nullptr;
};

/// The properties of a row, beside its contestants.
struct RowTraits {
  double flops = 0.0;     ///< useful floating-point operations a call, 0 if not meaningful
  double bytes = 0.0;     ///< useful bytes read and written a call, 0 if not meaningful
  bool training = false;  ///< runs with autograd; else under c10::InferenceMode
  bool random = false;    ///< results hold noise: only their shapes can be compared
  /// Most bytes that ours may hold at one time, 0: no limit. Then time is of no interest.
  double peak_limit = 0.0;
};

/// A row whose inputs' type is hidden; made by `add_row`.
struct Row {
  struct Entry {
    std::string name;
    std::function<at::Tensor()> run;
    double target;
    ResultView as_ours;
    bool may_refuse;
    std::function<double()> share;  // may be empty
  };

  std::string name;
  RowTraits traits;
  std::vector<Entry> entries;          // ours first
  std::function<std::string()> label;  // of ours, as the report shows it; may be empty
  std::function<void()> make_inputs;
  std::function<void()> drop_inputs;
};

using Rows = std::vector<Row>;

/// Adds the row `name`: contestants over the same inputs, ours first. Inputs are made when the row
/// is measured and dropped after it. `label` says something about them.
template <typename Inputs>
void add_row(Rows& rows, std::string name, RowTraits traits, std::function<Inputs()> make_inputs,
             const std::vector<Contestant<Inputs>>& contestants,
             const std::function<std::string(const Inputs&)>& label = nullptr) {
  const auto inputs = std::make_shared<std::optional<Inputs>>();
  Row row{std::move(name), traits, {}, {}, {}, {}};
  for (const auto& contestant : contestants) {
    row.entries.push_back({contestant.name,
                           [inputs, run = contestant.run] { return run(**inputs); },
                           contestant.target,
                           contestant.as_ours,
                           contestant.may_refuse,
                           {}});
    if (!contestant.share) continue;
    row.entries.back().share = [inputs, share = contestant.share] { return share(**inputs); };
  }
  if (label) row.label = [inputs, label] { return label(**inputs); };
  row.make_inputs = [inputs, make = std::move(make_inputs)] { inputs->emplace(make()); };
  row.drop_inputs = [inputs] { inputs->reset(); };
  rows.push_back(std::move(row));
}

}  // namespace heed::bench
