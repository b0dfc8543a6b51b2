// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/sharded_experts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <heed/sharded_layers.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "distributed/collectives.h"
#include "distributed/expert_exchange.h"

namespace heed::distributed::detail {

namespace {

using heed::detail::ExpertRows;

constexpr auto kMixture = "MixtureOfExperts";

/// The numbers that a process tells the others of a call, after those of their rows.
constexpr int64_t kFailed = 0, kRecords = 1, kRowsRecord = 2, kExpertsRecord = 3, kDtype = 4;
constexpr int64_t kNotices = 5;

bool is_trained(const torch::nn::Module& experts) {
  const auto parameters = experts.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

/// The numbers that all processes have sent to this one.
class Announcements {
 public:
  explicit Announcements(const at::Tensor& numbers) : numbers_(numbers.cpu()) {}

  bool any(int64_t notice) const { return column(notice).gt(0).any().item<bool>(); }

  /// Throws, in all processes, if their calls do not fit together.
  void check() const {
    const auto records = column(kRecords), dtypes = column(kDtype);
    for (int64_t rank = 1; rank < numbers_.size(0); ++rank) {
      const auto dtype = [&](int64_t of) {
        return c10::toString(static_cast<at::ScalarType>(dtypes[of].item<int64_t>()));
      };
      HEED_CHECK(dtypes[rank].equal(dtypes[0]),
                 "{}: dtype of x of rank {} ({}) must equal that of rank 0 ({})", kMixture, rank,
                 dtype(rank), dtype(0));
      HEED_CHECK(records[rank].equal(records[0]),
                 "{}: gradients must be recorded in all processes or in none; recorded in rank {}: "
                 "{}, in rank 0: {}",
                 kMixture, rank, records[rank].item<bool>(), records[0].item<bool>());
    }
  }

  std::vector<std::vector<int64_t>> counts() const {
    std::vector<std::vector<int64_t>> all;
    const auto size = numbers_.size(1) - kNotices;
    for (int64_t rank = 0; rank < numbers_.size(0); ++rank) {
      const auto* first = numbers_[rank].const_data_ptr<int64_t>();
      all.emplace_back(first, first + size);
    }
    return all;
  }

 private:
  at::Tensor column(int64_t notice) const {
    return numbers_.select(1, numbers_.size(1) - kNotices + notice);
  }

  const at::Tensor numbers_;  // [P, n + kNotices]
};

}  // namespace

ShardedExpertsImpl::ShardedExpertsImpl(const torch::nn::ModuleListImpl& whole,
                                       const TensorShard& shard, ProcessGroup group, int64_t id)
    : shard_(shard), group_(std::move(group)), id_(id) {
  for (const auto& expert : whole) push_back(expert);
  for (size_t i = 0; i < size(); ++i) {
    if (heed::detail::has_expert(this, i)) continue;
    for (auto& parameter : ptr(i)->parameters()) {
      heed::detail::keep_shard(parameter, {0, 0, 0, parameter.size(0)});
    }
  }
}

std::shared_ptr<torch::nn::Module> ShardedExpertsImpl::clone(
    const std::optional<at::Device>& /*device*/) const {
  heed::detail::refuse_clone();
}

void ShardedExpertsImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("heed::distributed::ShardedExperts(first={}, size={}, whole={})",
                        shard_.first, shard_.size, shard_.whole);
}

const torch::nn::Module& ShardedExpertsImpl::own() const {
  return *(*this)[static_cast<size_t>(shard_.first)];
}

/// int64 [P, n + kNotices]: for each process, the rows of its experts, and the notices.
at::Tensor ShardedExpertsImpl::announcement(const ExpertRows& rows, bool failed) const {
  const bool records = at::GradMode::is_enabled();
  const auto dtype = failed ? at::ScalarType::Undefined : rows.rows.scalar_type();
  const std::vector<int64_t> notices = {failed, records,
                                        records && !failed && rows.rows.requires_grad(),
                                        records && is_trained(*this), static_cast<int64_t>(dtype)};
  std::vector<int64_t> numbers;
  for (int64_t rank = 0; rank < group_->getSize(); ++rank) {
    for (int64_t i = 0; i < shard_.size; ++i) {
      numbers.push_back(failed ? 0 : rows.counts[static_cast<size_t>(rank * shard_.size + i)]);
    }
    numbers.insert(numbers.end(), notices.begin(), notices.end());
  }
  return at::tensor(numbers, at::kLong)
      .view({group_->getSize(), -1})
      .to(own().parameters().front().device());
}

at::Tensor ShardedExpertsImpl::run(
    const std::function<ExpertRows()>& prepare,
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& compute) const {
  ExpertRows rows;
  std::string error;
  const auto announced = run_exchange(group_, kMixture, [&] {
    try {
      rows = prepare();
    } catch (const c10::ValueError& refused) {
      error = refused.what_without_backtrace();
    }
    return Announcements(exchange(group_, fmt::format("{}: numbers of rows", kMixture),
                                  announcement(rows, !error.empty())));
  });
  if (announced.any(kFailed)) throw_everywhere(group_, kMixture, error);
  announced.check();
  auto plan = c10::make_intrusive<ExpertExchange>();
  plan->group = group_;
  plan->function = kMixture;
  plan->arrived = announced.counts();
  for (auto first = rows.counts.begin(); first != rows.counts.end(); first += shard_.size) {
    plan->sent.push_back(std::accumulate(first, first + shard_.size, int64_t{0}));
  }
  plan->average = average_;
  plan->records_rows = announced.any(kRowsRecord);
  plan->records_outputs = plan->records_rows || announced.any(kExpertsRecord);
  return run_exchange(group_, kMixture,
                      [&] { return combine(compute(dispatch(rows.rows, plan)), plan); });
}

std::vector<NamedExperts> sharded_experts_of(const torch::nn::Module& module) {
  std::vector<NamedExperts> found;
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    auto experts = std::dynamic_pointer_cast<ShardedExpertsImpl>(child.value());
    if (experts) found.push_back({child.key(), std::move(experts)});
  }
  return found;
}

void check_experts_group(const char* function, const torch::nn::Module& module,
                         const ProcessGroup& group) {
  for (const auto& [name, experts] : sharded_experts_of(module)) {
    const auto& own = experts->group();
    HEED_CHECK(own->getSize() == group->getSize() && own->getRank() == group->getRank(),
               "{}: {} must be split among the processes of group: they are split among {}, of "
               "which this process is {}; group has {}, of which it is {}",
               function, name, own->getSize(), own->getRank(), group->getSize(), group->getRank());
  }
}

std::unordered_set<const at::TensorImpl*> expert_parameters(const torch::nn::Module& module) {
  std::unordered_set<const at::TensorImpl*> all;
  for (const auto& [name, experts] : sharded_experts_of(module)) {
    for (const auto& parameter : experts->parameters()) all.insert(parameter.unsafeGetTensorImpl());
  }
  return all;
}

}  // namespace heed::distributed::detail
