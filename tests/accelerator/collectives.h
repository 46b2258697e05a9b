// Collectives of the test accelerator, in the order of its streams: gloo over the hidden bytes.
//
// As on other accelerators, a collective runs on a stream of its group, behind what was queued
// before, and the caller's stream waits for it, not the caller.  What goes to one peer, and what
// comes from one, has a stream for itself: two that send to each other would wait for ever.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "kernels.h"

namespace sim {

using Tensors = std::vector<Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

class StreamWork final : public c10d::Work {
 public:
  StreamWork(Tensors tensors, WorkPointer at_once, std::shared_ptr<Point> done)
      : tensors_(std::move(tensors)), at_once_(std::move(at_once)), done_(std::move(done)) {}

  bool wait(std::chrono::milliseconds) override {
    if (at_once_) return at_once_->wait();
    const int device = tensors_.at(0).device().index();
    errors().check(device);
    current(device).wait_for(done_);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  bool isCompleted() override { return at_once_ ? at_once_->isCompleted() : done_->is_reached(); }
  bool isSuccess() const override { return true; }
  Tensors result() override { return tensors_; }

 private:
  const Tensors tensors_;  // their memory is in use until nobody can wait any more
  const WorkPointer at_once_;  // with synchronous streams
  const std::shared_ptr<Point> done_;
};

class Collectives final : public c10d::Backend {
 public:
  explicit Collectives(c10::intrusive_ptr<c10d::Backend> host)
      : Backend(host->getRank(), host->getSize()), host_(std::move(host)) {}

  const std::string getBackendName() const override { return "sim"; }
  void setTimeout(std::chrono::milliseconds timeout) override { host_->setTimeout(timeout); }
  uint64_t getSequenceNumberForGroup() override { return host_->getSequenceNumberForGroup(); }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return queue(kOfAll, tensors, [=, host = host_](Tensors& all) {
      return host->broadcast(all, options);
    });
  }
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return queue(kOfAll, tensors, [=, host = host_](Tensors& all) {
      return host->allreduce(all, options);
    });
  }
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    return queue(kOfAll, joined(outputs.at(0), inputs), [=, host = host_](Tensors& all) {
      std::vector<Tensors> to{{all.begin(), all.end() - 1}};
      Tensors from{all.back()};
      return host->allgather(to, from, options);
    });
  }
  WorkPointer _allgather_base(Tensor& output, Tensor& input,
                              const c10d::AllgatherOptions& options) override {
    return queue(kOfAll, {output, input}, [=, host = host_](Tensors& all) {
      return host->_allgather_base(all[0], all[1], options);
    });
  }
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override {
    return queue(kOfAll, joined(outputs, inputs), [=, host = host_](Tensors& all) {
      auto [to, from] = halves(all);
      return host->allgather_into_tensor_coalesced(to, from, options);
    });
  }
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override {
    return queue(kOfAll, tensors, [=, host = host_](Tensors& all) {
      return host->allreduce_coalesced(all, options);
    });
  }
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override {
    return queue(kOfAll, joined(outputs, inputs), [=, host = host_](Tensors& all) {
      auto [to, from] = halves(all);
      return host->reduce_scatter_tensor_coalesced(to, from, options);
    });
  }
  WorkPointer _reduce_scatter_base(Tensor& output, Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    return queue(kOfAll, {output, input}, [=, host = host_](Tensors& all) {
      return host->_reduce_scatter_base(all[0], all[1], options);
    });
  }
  WorkPointer alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_sizes,
                            std::vector<int64_t>& input_sizes,
                            const c10d::AllToAllOptions& options) override {
    return queue(kOfAll, {output, input},
                 [=, host = host_](Tensors& all) mutable {
                   return host->alltoall_base(all[0], all[1], output_sizes, input_sizes, options);
                 });
  }
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override {
    const bool is_root = !inputs.empty();
    auto all = is_root ? joined(inputs.at(0), outputs) : outputs;
    return queue(kOfAll, all, [=, host = host_](Tensors& all) {
      std::vector<Tensors> from;
      if (is_root) from.emplace_back(all.begin(), all.end() - 1);
      Tensors to{all.back()};
      return host->scatter(to, from, options);
    });
  }
  WorkPointer send(Tensors& tensors, int peer, int tag) override {
    return queue(1 + 2 * peer, tensors, [=, host = host_](Tensors& all) {
      return host->send(all, peer, tag);
    });
  }
  WorkPointer recv(Tensors& tensors, int peer, int tag) override {
    return queue(2 + 2 * peer, tensors, [=, host = host_](Tensors& all) {
      return host->recv(all, peer, tag);
    });
  }
  WorkPointer barrier(const c10d::BarrierOptions& options) override {
    streams().synchronize(current_device);
    return host_->barrier(options);
  }

 private:
  static constexpr int kOfAll = 0;

  static Tensors joined(Tensors first, const Tensors& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }

  static std::pair<Tensors, Tensors> halves(const Tensors& all) {
    const auto middle = all.begin() + all.size() / 2;
    return {{all.begin(), middle}, {middle, all.end()}};
  }

  // Act on host aliases of the tensors, behind the current stream.
  WorkPointer queue(int which, Tensors tensors, std::function<WorkPointer(Tensors&)> act) {
    const int device = tensors.at(0).device().index();
    errors().check(device);
    Tensors aliases;
    for (const auto& each : tensors) aliases.push_back(host_alias(each));
    if (!settings().is_async) {
      auto started = act(aliases);
      return c10::make_intrusive<StreamWork>(std::move(tensors), std::move(started), nullptr);
    }
    auto& stream = stream_of(device, which);
    stream.wait_for(current(device).record());
    for (const auto& each : tensors)
      device_memory().recordStream(each.storage().data_ptr(), as_torch(stream));
    stream.queue([aliases, act]() mutable { act(aliases)->wait(); });
    auto done = stream.record();
    return c10::make_intrusive<StreamWork>(std::move(tensors), nullptr, std::move(done));
  }

  Stream& stream_of(int device, int which) {
    std::lock_guard lock(mutex_);
    auto& found = streams_[{device, which}];
    if (!found) found = &streams().add(device);
    return *found;
  }

  const c10::intrusive_ptr<c10d::Backend> host_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, Stream*> streams_;
};

}  // namespace sim
