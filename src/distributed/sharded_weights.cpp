// SPDX-License-Identifier: BSD-3-Clause
#include <heed/distributed/parameter_shards.h>
#include <heed/distributed/sharded_weights.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <heed/module.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "distributed/collectives.h"
#include "weights/shards.h"

namespace heed::distributed {

namespace {

using heed::detail::HeldTensor;

/// The error's text without the name of the function, which `agree` puts before the rank.
std::string text_of(const std::exception& error, const std::string& function) {
  const auto* named = dynamic_cast<const c10::Error*>(&error);
  const std::string text = named ? named->what_without_backtrace() : error.what();
  const auto start = function + ": ";
  return text.rfind(start, 0) == 0 ? text.substr(start.size()) : text;
}

/// Waits for the other processes. Throws in all of them if one of them has an error.
void agree(const ProcessGroup& group, const std::string& function, const std::string& error) {
  const auto errors = detail::all_gather(group, function, error);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    HEED_CHECK(errors[rank].empty(), "{}: process {} of {}: {}", function, rank, errors.size(),
               errors[rank]);
  }
}

/// Runs `run` in all processes. If it throws in one of them, throws the same error in all.
template <typename Run>
void run_in_all(const ProcessGroup& group, const std::string& function, const Run& run) {
  std::string error;
  try {
    run();
  } catch (const c10::DistError&) {
    throw;  // the others cannot be reached
  } catch (const std::exception& thrown) {
    error = text_of(thrown, function);
  }
  agree(group, function, error);
}

/// The rows of a tensor that one process sends; columns if the tensor is split by columns.
struct Piece {
  int64_t rank, first, size;
};

/// Brings whole tensors to rank 0, one at a time.
class Gathering {
 public:
  Gathering(const ProcessGroup& group, std::vector<HeldTensor> tensors)
      : group_(group), tensors_(std::move(tensors)) {
    std::string text;
    for (const auto& held : tensors_) text += describe(held) + "\n";
    detail::check_same(group_, kFunction, "tensors", text);
    std::vector<int64_t> own;
    for (const auto& held : tensors_) {
      if (held.shard) own.insert(own.end(), {held.shard->first, held.shard->size});
    }
    if (own.empty()) return;
    const auto all = detail::all_gather(group_, operation("comparison of shards"), at::tensor(own));
    int64_t column = 0;
    for (const auto& held : tensors_) {
      pieces_.emplace_back();
      if (!held.shard) continue;
      pieces_.back() = pieces(held.name, *held.shard, all, column);
      column += 2;
    }
  }

  /// Called in rank 0: returns a whole tensor. The other processes must be in `serve`.
  at::Tensor whole(const std::string& name) const {
    const auto index = index_of(name);
    const auto& held = tensors_[index];
    if (!held.shard) return held.tensor.detach();
    const auto receive_all = [&] {
      announce(static_cast<int64_t>(index));
      auto whole = at::empty(held.whole.sizes(), held.tensor.scalar_type());
      for (const auto& piece : pieces_[index]) {
        const auto to = whole.narrow(held.shard->dim, piece.first, piece.size);
        if (piece.rank == 0) {
          to.copy_(held_part(held.tensor, *held.shard, piece));
        } else if (to.is_contiguous()) {
          receive(name, to, piece.rank);
        } else {
          const auto buffer = at::empty(to.sizes(), to.options());
          receive(name, buffer, piece.rank);
          to.copy_(buffer);
        }
      }
      return whole;
    };
    return detail::run_exchange(group_, operation(name), receive_all);
  }

  /// Called in the other ranks: sends the tensors that rank 0 asks for, until it calls `end`.
  void serve() const {
    detail::run_exchange(group_, kFunction, [&] {
      for (auto index = next(); index >= 0; index = next()) {
        const auto& held = tensors_[static_cast<size_t>(index)];
        for (const auto& piece : pieces_[static_cast<size_t>(index)]) {
          if (held.shard && piece.rank == group_->getRank()) {
            const auto part = held_part(held.tensor, *held.shard, piece);
            const auto doing = operation(held.name);
            detail::wait(*group_, doing, detail::send(group_, doing, part, /*to=*/0, kTag));
          }
        }
      }
    });
  }
  /// Called in rank 0: ends `serve` in the others.
  void end() const { announce(kEnd); }

 private:
  static constexpr const char* kFunction = "save_weights";
  static constexpr int64_t kEnd = -1;
  static constexpr int kTag = 0;

  static std::string operation(const std::string& what) {
    return std::string(kFunction) + ": " + what;
  }

  static std::string describe(const HeldTensor& held) {
    const auto dim = held.shard ? fmt::format(" in parts of dim {}", held.shard->dim) : "";
    return fmt::format("{} {} {}{}", held.name, c10::toString(held.whole.scalar_type()),
                       c10::str(held.whole.sizes()), dim);
  }

  /// Which process sends which rows: of those that have a row, the one of lowest rank. all[rank]
  /// has a process's first row at `column`, and the number of its rows at `column` + 1.
  static std::vector<Piece> pieces(const std::string& name, const TensorShard& shard,
                                   const std::vector<at::Tensor>& all, int64_t column) {
    std::vector<Piece> found;
    for (int64_t row = 0; row < shard.whole;) {
      const auto before = row;
      for (size_t rank = 0; rank < all.size() && row == before; ++rank) {
        const auto first = all[rank][column].item<int64_t>();
        const auto end = first + all[rank][column + 1].item<int64_t>();
        if (first > row || row >= end) continue;
        found.push_back({static_cast<int64_t>(rank), row, end - row});
        row = end;
      }
      HEED_CHECK(row > before, "{}: shards: {}: index {} of dim {} must be in a process", kFunction,
                 name, row, shard.dim);
    }
    return found;
  }

  static at::Tensor held_part(const at::Tensor& tensor, const TensorShard& shard,
                              const Piece& piece) {
    const auto part = tensor.detach().narrow(shard.dim, piece.first - shard.first, piece.size);
    return part.cpu().resolve_conj().resolve_neg().contiguous();
  }

  void receive(const std::string& name, const at::Tensor& to, int64_t rank) const {
    const auto doing = operation(name);
    detail::wait(*group_, doing, detail::receive(group_, doing, to, rank, kTag));
  }

  size_t index_of(const std::string& name) const {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const auto& held) { return held.name == name; });
    return static_cast<size_t>(found - tensors_.begin());
  }

  void announce(int64_t index) const {
    detail::broadcast(group_, operation("next tensor"), at::full({1}, index, at::kLong));
  }

  int64_t next() const {
    auto index = at::full({1}, kEnd, at::kLong);
    detail::broadcast(group_, operation("next tensor"), index);
    return index.item<int64_t>();
  }

  const ProcessGroup& group_;
  std::vector<HeldTensor> tensors_;
  std::vector<std::vector<Piece>> pieces_;  // of each tensor; none if it is not sharded
};

/// The shards that the caller gives, and those that `parallelize` has made.
TensorShards all_shards(const torch::nn::Module& module, TensorShards shards) {
  shards.merge(shards_of(module));
  return shards;
}

/// Runs `write` in rank 0, with whole tensors; the other ranks send it their parts.
template <typename Write>
void write_in_first(const ProcessGroup& group, const Gathering& gathering, const Write& write) {
  if (group->getRank() != 0) return gathering.serve();
  try {
    write();
  } catch (const c10::DistError&) {
    throw;
  } catch (...) {
    gathering.end();
    throw;
  }
  gathering.end();
}

}  // namespace

LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                        const ProcessGroup& group, const LoadOptions& options) {
  const std::string function = "load_weights";
  auto with_shards = options;
  with_shards.shards(all_shards(module, options.shards()));
  LoadReport report;
  std::string error;
  bool checked = false, agreed = false;
  try {
    report = heed::detail::load_weights(module, path, with_shards, [&] {
      checked = true;
      agree(group, function, "");
      agreed = true;
    });
  } catch (const c10::DistError&) {
    throw;
  } catch (const std::exception& thrown) {
    if (checked && !agreed) throw;  // all processes throw it
    error = text_of(thrown, function);
  }
  // A process that failed a check meets here those that wait in the callback, before they change
  // anything. If none failed, all meet here after reading.
  agree(group, function, error);
  return report;
}

void save_weights(const torch::nn::Module& module, const std::string& path,
                  const ProcessGroup& group, const TensorShards& shards,
                  const SaveOptions& options) {
  const std::string function = "save_weights";
  std::vector<HeldTensor> tensors;
  run_in_all(group, function, [&] {
    HEED_CHECK(options.format() == WeightFormat::safetensors,
               "format (torchscript) must be safetensors, which is written tensor by tensor");
    const auto all = all_shards(module, shards);
    if (!all.empty()) {
      heed::detail::check_not_packed("save_weights", module, " where processes have parts");
    }
    tensors = heed::detail::held_tensors("save_weights", module, all);
  });
  const Gathering gathering(group, tensors);
  run_in_all(group, function, [&] {
    write_in_first(group, gathering, [&] {
      heed::detail::save_weights(tensors, path, options,
                                 [&](const auto& name) { return gathering.whole(name); });
    });
  });
}

void save_weights(const torch::nn::Module& module, const std::string& path,
                  const ProcessGroup& group, const SaveOptions& options) {
  save_weights(module, path, group, TensorShards(), options);
}

}  // namespace heed::distributed
