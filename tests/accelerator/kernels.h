// Operations of the test accelerator: CPU kernels over the hidden bytes, queued on a stream.
//
// One boxed fallback serves nearly all.  It gives each tensor a CPU alias over its bytes and queues
// the CPU kernel.  Views and operations whose result's shape depends on data run at once, the latter
// behind a synchronisation.  Shapes of other results come from the operation's Meta kernel.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include "memory.h"
#include "random.h"

namespace sim {

using at::Tensor;
using c10::IValue;
using Arguments = std::vector<IValue>;

inline bool is_sim(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSim;
}

// --- aliases -----------------------------------------------------------------------------------

inline c10::Storage bytes_of(const c10::Storage& storage) {
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(),
                      c10::DataPtr(bytes_at(storage.data()), c10::kCPU), c10::GetCPUAllocator(),
                      /*resizable=*/false);
}

// The same view as `tensor`, of another storage.
inline Tensor view_of(const c10::Storage& storage, const Tensor& tensor, c10::DispatchKey key) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                       c10::DispatchKeySet(key), tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

inline Tensor host_alias(const Tensor& tensor) {
  return view_of(bytes_of(tensor.storage()), tensor, c10::DispatchKey::CPU);
}

inline Tensor empty_on(int device, const Tensor& like) {
  c10::DeviceGuard guard(c10::Device(kSim, device));
  return at::empty_strided(like.sizes(), like.strides(),
                           like.options().device(c10::Device(kSim, device)));
}

// Fill by way of the stream: poisoning of the block may still be queued there.
inline void fill_later(const Tensor& target, const Tensor& host) {
  current(target.device().index()).queue([to = host_alias(target), host]() mutable {
    at::AutoDispatchBelowADInplaceOrView guard;
    to.copy_(host);
  });
}

inline Tensor to_device(const Tensor& host, int device) {
  if (!host.defined()) return host;
  auto made = empty_on(device, host);
  fill_later(made, host);
  return made;
}

template <class Function>
IValue map_tensors(const IValue& value, Function function) {
  if (value.isTensor()) return function(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> mapped;
    for (const Tensor& each : value.toTensorVector()) mapped.push_back(function(each));
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> mapped;
    for (const auto& each : value.toOptionalTensorVector())
      mapped.push_back(each ? std::optional<Tensor>(function(*each)) : each);
    return mapped;
  }
  return value;
}

inline void call_on_host(const c10::OperatorHandle& op, Arguments& arguments) {
  at::AutoDispatchBelowADInplaceOrView guard;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
}

// --- the fallback --------------------------------------------------------------------------------

inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// One call of an operation whose tensors are on the device.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Arguments given)
      : op_(op), schema_(op.schema()), given_(std::move(given)), device_(find_device()) {}

  Arguments run() {
    c10::DeviceGuard guard(c10::Device(kSim, device_));
    errors().check(device_);
    make_host_arguments();
    look_at_returns();
    auto& stream = current(device_);
    if (settings().is_async && !is_view_ && !resizes_ && returns_tensors_) {
      if (returns_only_written_) return queue_in_place(stream);
      if (auto results = queue_by_meta(stream)) return *results;
    }
    if (settings().is_async && !is_view_) stream.synchronize();
    return run_now();
  }

 private:
  // Device of the tensors, of which only 0-dim host ones and indices may be elsewhere.
  int find_device() const {
    int device = -1;
    for (const auto& each : given_)
      map_tensors(each, [&](const Tensor& tensor) {
        if (!is_sim(tensor)) return tensor;
        TORCH_CHECK(device < 0 || device == tensor.device().index(),
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    "sim:", device, " and ", tensor.device(), "! (", schema_.name(), ")");
        device = tensor.device().index();
        return tensor;
      });
    for (const auto& each : given_)
      if (device < 0 && each.isDevice() && each.toDevice().type() == kSim)
        device = each.toDevice().index();
    return device < 0 ? current_device : device;
  }

  void make_host_arguments() {
    const auto& name = schema_.name();
    takes_host_indices_ =
        name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index_put", 0) == 0;
    for (size_t index = 0; index < given_.size(); index++) {
      const auto& argument = schema_.arguments()[index];
      const auto& value = given_[index];
      if (value.isDevice()) {
        host_.push_back(c10::Device(c10::kCPU));
      } else if (argument.type()->str().find("Generator") != std::string::npos) {
        std::optional<at::Generator> generator;
        if (!value.isNone()) generator = value.toGenerator();
        host_.push_back(generator_of_kernel(generator, device_));
      } else {
        const bool written = is_written(argument);
        host_.push_back(map_tensors(
            value, [&](const Tensor& tensor) { return host_argument(tensor, written); }));
      }
    }
    if (resizes_)
      for (auto& [_, bytes] : bytes_) bytes.unsafeGetStorageImpl()->set_resizable(true);
  }

  Tensor host_argument(const Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    if (!is_sim(tensor)) {
      TORCH_CHECK(tensor.dim() == 0 || takes_host_indices_,
                  "Expected all tensors to be on the same device, but found at least two devices, "
                  "sim:", device_, " and ", tensor.device(), "! (", schema_.name(), ")");
      auto copy = tensor.clone();
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
        copy.unsafeGetTensorImpl()->set_wrapped_number(true);
      return copy;
    }
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    auto found = bytes_.find(storage);
    if (found == bytes_.end()) {
      found = bytes_.emplace(storage, bytes_of(tensor.storage())).first;
      storages_.emplace(found->second.unsafeGetStorageImpl(), tensor.storage());
    }
    auto alias = view_of(found->second, tensor, c10::DispatchKey::CPU);
    if (written) {
      written_.emplace(alias.unsafeGetTensorImpl(), tensor);
      resizes_ |= tensor.numel() == 0;
    }
    return alias;
  }

  void look_at_returns() {
    for (const auto& each : schema_.returns()) {
      const bool written = is_written(each);
      if (each.alias_info() && !written) is_view_ = true;
      if (!written) returns_only_written_ = false;
      const auto type = each.type()->str();
      if (type != "Tensor" && type != "Tensor[]") returns_tensors_ = false;
    }
  }

  // The written arguments, in order: what an operation in place or with `out=` returns.
  const IValue& next_written(size_t& index) const {
    while (!is_written(schema_.arguments()[index])) index++;
    return given_[index++];
  }

  Arguments queue_in_place(Stream& stream) {
    Arguments results;
    size_t index = 0;
    for (size_t each = 0; each < schema_.returns().size(); each++)
      results.push_back(next_written(index));
    stream.queue([op = op_, host = host_]() mutable { call_on_host(op, host); });
    return results;
  }

  // An embedding bag's Meta kernel has other shapes than the CPU's.
  bool is_foretold() const { return schema_.name().rfind("aten::_embedding_bag", 0) != 0; }

  std::optional<Arguments> queue_by_meta(Stream& stream) {
    if (!is_foretold() || !op_.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta) ||
        op_.hasTag(at::Tag::dynamic_output_shape) || op_.hasTag(at::Tag::data_dependent_output))
      return std::nullopt;
    Arguments meta;
    for (const auto& each : host_) {
      if (each.isDevice())
        meta.push_back(c10::Device(c10::kMeta));
      else if (each.isGenerator())
        meta.push_back(IValue());
      else
        meta.push_back(map_tensors(each, [](const Tensor& tensor) {
          if (!tensor.defined()) return tensor;
          return at::empty_strided(tensor.sizes(), tensor.strides(),
                                   tensor.options().device(c10::kMeta));
        }));
    }
    try {
      at::AutoDispatchBelowADInplaceOrView guard;
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &meta);
    } catch (const c10::NotImplementedError&) {
      return std::nullopt;
    }
    Arguments results, targets;  // targets: host aliases of new results, else nothing
    size_t index = 0;
    for (size_t each = 0; each < meta.size(); each++) {
      if (is_written(schema_.returns()[each])) {
        results.push_back(next_written(index));
        targets.emplace_back();
        continue;
      }
      results.push_back(map_tensors(meta[each], [&](const Tensor& shape) {
        return shape.defined() ? empty_on(device_, shape) : shape;
      }));
      targets.push_back(map_tensors(results.back(), [](const Tensor& tensor) {
        return tensor.defined() ? host_alias(tensor) : tensor;
      }));
    }
    stream.queue([op = op_, host = host_, targets]() mutable {
      call_on_host(op, host);
      for (size_t each = 0; each < targets.size(); each++)
        if (!targets[each].isNone()) copy_all(op, host[each], targets[each]);
    });
    return results;
  }

  static void copy_all(const c10::OperatorHandle& op, const IValue& from, const IValue& to) {
    at::AutoDispatchBelowADInplaceOrView guard;
    std::vector<Tensor> sources, targets;
    map_tensors(from, [&](const Tensor& each) { return sources.push_back(each), each; });
    map_tensors(to, [&](const Tensor& each) { return targets.push_back(each), each; });
    for (size_t each = 0; each < targets.size(); each++) {
      if (!targets[each].defined() || !sources[each].defined()) continue;  // what nobody wants
      TORCH_CHECK(sources[each].sizes() == targets[each].sizes() &&
                      sources[each].dtype() == targets[each].dtype(),
                  "sim: the Meta kernel of ", op.schema().name(), " and the CPU's disagree");
      targets[each].copy_(sources[each]);
    }
  }

  Arguments run_now() {
    call_on_host(op_, host_);
    for (auto& [impl, tensor] : written_) {
      if (impl->sizes() == tensor.sizes()) continue;
      auto result = Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl));
      tensor.resize_(result.sizes());  // what `out=` named had another shape
      fill_later(tensor, result);
    }
    Arguments results;
    for (const auto& each : host_)
      results.push_back(
          map_tensors(each, [&](const Tensor& tensor) { return device_result(tensor); }));
    return results;
  }

  Tensor device_result(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (auto given = written_.find(tensor.unsafeGetTensorImpl()); given != written_.end())
      return given->second;
    auto storage = storages_.find(tensor.storage().unsafeGetStorageImpl());
    if (is_view_ && storage != storages_.end())
      return view_of(storage->second, tensor, c10::DispatchKey::PrivateUse1);
    return to_device(tensor, device_);
  }

  const c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  const Arguments given_;
  const int device_;
  Arguments host_;
  std::map<void*, c10::Storage> bytes_;     // by the storage on the device
  std::map<void*, c10::Storage> storages_;  // and back
  std::map<c10::TensorImpl*, Tensor> written_;
  bool takes_host_indices_ = false, resizes_ = false;
  bool is_view_ = false, returns_only_written_ = true, returns_tensors_ = true;
};

inline void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t number = op.schema().arguments().size();
  Arguments given(stack->end() - static_cast<long>(number), stack->end());
  stack->erase(stack->end() - static_cast<long>(number), stack->end());
  for (auto& each : Call(op, std::move(given)).run()) stack->push_back(std::move(each));
}

inline void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "sim: no kernel for ", op.schema().name());
}

// --- operations of their own -----------------------------------------------------------------------

inline c10::Device device_or_current(std::optional<c10::Device> device) {
  return c10::Device(kSim, !device || device->index() < 0 ? current_device : device->index());
}

inline Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                    std::optional<c10::Layout>, std::optional<c10::Device> device,
                    std::optional<bool> pinned, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(size, &device_memory(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

inline Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                            std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                            std::optional<c10::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(size, stride, &device_memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

inline void resize_storage(const c10::Storage& storage, size_t size) {
  c10::DeviceGuard guard(storage.device());
  auto* impl = storage.unsafeGetStorageImpl();
  auto data = size ? device_memory().allocate(size) : c10::DataPtr(nullptr, storage.device());
  const size_t kept = std::min(size, impl->nbytes());
  if (kept && impl->data())
    current(storage.device().index())
        .queue([to = bytes_at(data.get()), from = bytes_at(impl->data()), kept] {
          std::memcpy(to, from, kept);
        });
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(size);
}

inline const Tensor& resize(const Tensor& tensor, c10::IntArrayRef size,
                            std::optional<c10::MemoryFormat>) {
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  const size_t needed =
      tensor.numel() ? (tensor.numel() + tensor.storage_offset()) * tensor.itemsize() : 0;
  if (tensor.storage().nbytes() < needed) resize_storage(tensor.storage(), needed);
  return tensor;
}

inline void copy_later(Stream& stream, Tensor from, Tensor to) {
  stream.queue([from = std::move(from), to = std::move(to)]() mutable {
    at::AutoDispatchBelowADInplaceOrView guard;
    to.copy_(from);
  });
}

// As CUDA: only between pinned memory and a device does a non-blocking copy come later.
inline Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView guard;
  if (!source.numel()) return target;
  const Tensor from = source.expand(target.sizes());
  if (is_sim(source) && is_sim(target)) {
    const int here = source.device().index(), there = target.device().index();
    errors().check(here);
    errors().check(there);
    auto &sending = current(here), &receiving = current(there);
    if (here != there) sending.wait_for(receiving.record());
    copy_later(sending, host_alias(from), host_alias(target));
    if (here != there) receiving.wait_for(sending.record());
  } else if (is_sim(target)) {
    errors().check(target.device().index());
    auto& stream = current(target.device().index());
    const bool reads_later = settings().is_async && source.is_pinned();
    copy_later(stream, reads_later || !settings().is_async ? from : from.clone(),
               host_alias(target));
    if (reads_later && !non_blocking)
      stream.synchronize();
    else if (!non_blocking)
      note_wait();  // as CUDA waits; more is late if this one does not
  } else {
    errors().check(source.device().index());
    check_reading();
    auto& stream = current(source.device().index());
    copy_later(stream, host_alias(from), target);
    if (!(settings().is_async && target.is_pinned() && non_blocking)) stream.synchronize();
  }
  return target;
}

inline Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

inline at::Scalar item(const Tensor& tensor) {
  current(tensor.device().index()).synchronize();
  at::AutoDispatchBelowADInplaceOrView guard;
  return host_alias(tensor).item();
}

inline std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                                 std::optional<bool> is_training) {
  const auto bools = input.options().dtype(at::kBool);
  if (!is_training.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, bools)};
  auto mask = at::empty_like(input, bools).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0. : 1 / (1 - p)), mask};
}

inline Tensor convolution(const Tensor& input, const Tensor& weight,
                          const std::optional<Tensor>& bias, c10::IntArrayRef stride,
                          c10::IntArrayRef padding, c10::IntArrayRef dilation, bool is_transposed,
                          c10::IntArrayRef output_padding, int64_t groups) {
  const int device = input.device().index();
  current(device).synchronize();
  Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    std::optional<Tensor> host_bias;
    if (bias && bias->defined()) host_bias = host_alias(*bias);
    result = at::convolution(host_alias(input), host_alias(weight), host_bias, stride, padding,
                             dilation, is_transposed, output_padding, groups);
  }
  return to_device(result, device);
}

inline std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool is_transposed,
    c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  const int device = input.device().index();
  current(device).synchronize();
  std::tuple<Tensor, Tensor, Tensor> results;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    results = at::convolution_backward(host_alias(gradient), host_alias(input), host_alias(weight),
                                       c10::IntArrayRef{gradient.size(1)}, stride, padding,
                                       dilation, is_transposed, output_padding, groups, mask);
  }
  auto& [of_input, of_weight, of_bias] = results;
  return {to_device(of_input, device), to_device(of_weight, device), to_device(of_bias, device)};
}

}  // namespace sim
