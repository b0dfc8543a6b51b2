// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/share_exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>

#include "core/dtypes.h"
#include "distributed/collectives.h"

namespace heed::distributed::detail {

namespace {

/// Tags of messages with chunk 0; those with chunk 1 have the next tag.
constexpr int64_t kKeys = 0, kGradients = kChunks;

at::Tensor pack(const at::Tensor& key, const at::Tensor& value) {
  return at::cat({key.reshape({-1}), value.reshape({-1})});
}

/// Splits a buffer into key and value of one chunk, which have the shapes of this process's own.
std::pair<at::Tensor, at::Tensor> unpack(const at::Tensor& buffer, const at::Tensor& own_key,
                                         const at::Tensor& own_value) {
  const auto key = chunk_of(own_key, 0).sizes().vec();
  const auto value = chunk_of(own_value, 0).sizes().vec();
  const auto size = c10::multiply_integers(key);
  return {buffer.narrow(0, 0, size).view(key),
          buffer.narrow(0, size, buffer.numel() - size).view(value)};
}

/// Room for the key and value of one chunk.
at::Tensor empty_buffer(const at::Tensor& key, const at::Tensor& value) {
  return at::empty({(key.numel() + value.numel()) / kChunks}, key.options().requires_grad(false));
}

/// Starts to receive chunk n from a process; `tag` is that of chunk 0.
Arrival start_to_receive(const SequenceCall& call, std::string operation, int64_t from, int64_t n,
                         int64_t tag, at::Tensor buffer) {
  auto work = receive(call.group(), operation, buffer, from, static_cast<int>(tag + n));
  return {n, std::move(operation), std::move(buffer), std::move(work)};
}

}  // namespace

ShareExchange::ShareExchange(const SequenceCall& call, const at::Tensor& key,
                             const at::Tensor& value)
    : call_(call), key_(key), value_(value) {
  for (int64_t n = 0; n < kChunks; ++n) packed_[n] = pack(chunk_of(key, n), chunk_of(value, n));
}

std::vector<Arrival> ShareExchange::start(int64_t step) {
  const auto processes = call_.processes(), rank = call_.rank();
  const auto to = (rank + step) % processes, from = (rank + processes - step) % processes;
  std::vector<Arrival> arrivals;
  for (int64_t n = 0; n < kChunks; ++n) {
    if (call_.visibility().sees(to, rank, n)) {
      const auto operation = fmt::format("{}: sending keys to process {}", call_.function(), to);
      sent_.push_back(send(call_.group(), operation, packed_[n], to, static_cast<int>(kKeys + n)));
    }
    if (call_.visibility().sees(rank, from, n)) {
      arrivals.push_back(start_to_receive(
          call_, fmt::format("{}: receiving keys of process {}", call_.function(), from), from, n,
          kKeys, empty_buffer(key_, value_)));
    }
  }
  return arrivals;
}

void ShareExchange::for_each_share(const Visit& visit,
                                   const std::function<void(int64_t step)>& end_step) {
  const auto processes = call_.processes(), rank = call_.rank();
  std::vector<Arrival> arrivals;
  for (int64_t step = 0; step < processes; ++step) {
    const auto owner = (rank + processes - step) % processes;
    for (const auto& arrival : arrivals) {
      wait(*call_.group(), arrival.operation, arrival.work);
    }
    const auto current = std::move(arrivals);
    arrivals.clear();
    if (step + 1 < processes) arrivals = start(step + 1);
    if (step == 0) {
      for (int64_t n = 0; n < kChunks; ++n) visit(rank, n, chunk_of(key_, n), chunk_of(value_, n));
    }
    for (const auto& arrival : current) {
      const auto [key, value] = unpack(arrival.buffer, key_, value_);
      visit(owner, arrival.n, key, value);
    }
    if (end_step) end_step(step);
  }
  for (const auto& work : sent_) {
    wait(*call_.group(), fmt::format("{}: sending keys", call_.function()), work);
  }
  sent_.clear();
}

GradientReturn::GradientReturn(const SequenceCall& call, const at::Tensor& key,
                               const at::Tensor& value)
    : call_(call) {
  const auto options =
      key.options().requires_grad(false).dtype(heed::detail::compute_dtype(key.scalar_type()));
  key_ = at::zeros(key.sizes(), options);
  value_ = at::zeros(value.sizes(), options);
}

void GradientReturn::add(int64_t n, const at::Tensor& key, const at::Tensor& value) {
  chunk_of(key_, n).add_(key);
  chunk_of(value_, n).add_(value);
}

void GradientReturn::give(int64_t owner, int64_t n, const at::Tensor& key,
                          const at::Tensor& value) {
  if (owner == call_.rank()) return add(n, key, value);
  const auto buffer = pack(key, value);
  const auto operation =
      fmt::format("{}: sending gradients of keys to process {}", call_.function(), owner);
  sent_.emplace_back(
      buffer, send(call_.group(), operation, buffer, owner, static_cast<int>(kGradients + n)));
}

void GradientReturn::take(const std::vector<Arrival>& arrivals) {
  for (const auto& arrival : arrivals) {
    wait(*call_.group(), arrival.operation, arrival.work);
    const auto [key, value] = unpack(arrival.buffer, key_, value_);
    add(arrival.n, key, value);
  }
}

void GradientReturn::end_step(int64_t step) {
  const auto before = std::move(arrivals_);
  arrivals_.clear();
  const auto reader = (call_.rank() + step) % call_.processes();
  for (int64_t n = 0; n < kChunks && step > 0; ++n) {
    if (!call_.visibility().sees(reader, call_.rank(), n)) continue;
    arrivals_.push_back(start_to_receive(
        call_,
        fmt::format("{}: receiving gradients of keys from process {}", call_.function(), reader),
        reader, n, kGradients, empty_buffer(key_, value_)));
  }
  take(before);  // these had a step's time to arrive
}

std::pair<at::Tensor, at::Tensor> GradientReturn::finish() {
  take(arrivals_);
  for (const auto& [buffer, work] : sent_) {
    wait(*call_.group(), fmt::format("{}: sending gradients of keys", call_.function()), work);
  }
  return {key_, value_};
}

}  // namespace heed::distributed::detail
