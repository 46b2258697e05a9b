// The test accelerator, as a PrivateUse1 backend of torch: what it registers, and what Python sees.
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>

#include "collectives.h"

namespace py = pybind11;

namespace sim {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const int before = current_device;
    setDevice(device);
    return c10::Device(kSim, before);
  }
  c10::Device getDevice() const override { return c10::Device(kSim, current_device); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < settings().num_devices, "sim: invalid device ordinal ",
                static_cast<int>(device.index()));
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return settings().num_devices; }

  c10::Stream getStream(c10::Device device) const override {
    return as_torch(current(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return as_torch(streams().get(index_of(device), 0));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return as_torch(streams().add(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = as_torch(current(stream.device_index()));
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &from_torch(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    check_reading();
    return from_torch(stream).is_idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    from_torch(stream).synchronize();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    streams().synchronize(device);
  }

  using Event = std::shared_ptr<Point>;
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = from_torch(stream).record();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) from_torch(stream).wait_for(*static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    check_reading();
    auto* point = static_cast<Event*>(event);
    if (!point || !*point) return true;
    const bool is_reached = (*point)->is_reached();
    errors().check((*point)->device);
    return is_reached;
  }
  void synchronizeEvent(void* event) const override {
    auto* point = static_cast<Event*>(event);
    if (!point || !*point) return;
    note_wait();
    (*point)->wait();
    errors().check((*point)->device);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(queryEvent(from) && queryEvent(to), "sim: an event is not reached");
    return (*static_cast<Event*>(from))->ms_until(**static_cast<Event*>(to));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_memory().recordStream(data, stream);
  }

 private:
  static int index_of(c10::Device device) {
    return device.index() < 0 ? current_device : device.index();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)
REGISTER_ALLOCATOR(kSim, &device_memory())

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return settings().num_devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return settings().num_devices; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    Guard().setDevice(c10::Device(kSim, device));
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const int before = current_device;
    if (device >= 0) current_device = device;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device : device);
  }
  bool isPinnedPtr(const void* pointer) const override { return pinned_memory().has(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  c10::Device getDeviceFromPtr(void* pointer) const override {
    TORCH_CHECK(is_device_pointer(pointer), "not a sim pointer");
    return c10::Device(kSim, (static_cast<char*>(pointer) - ranges().addresses) / kDeviceBytes);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    resize_storage(storage, size);
  }
};

// torch's own choice would be a fused attention kernel; mathematics is what there is.
int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                         double, bool, std::optional<double>, bool) {
  return 0;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", item);
  library.impl("record_stream", [](Tensor& tensor, c10::Stream stream) {
    device_memory().recordStream(tensor.storage().data_ptr(), stream);
  });
  library.impl("native_dropout", native_dropout);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("_fused_sdp_choice", choose_attention);
  // Views only change sizes and strides.
  library.impl("view", [](const Tensor& tensor, c10::SymIntArrayRef size) {
    return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
  });
  library.impl("as_strided", [](const Tensor& tensor, c10::SymIntArrayRef size,
                                c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
    return at::cpu::as_strided_symint(tensor, size, stride, offset);
  });
  library.impl("_reshape_alias",
               [](const Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
                 return at::native::_reshape_alias(tensor, C10_AS_INTARRAYREF_SLOW(size),
                                                   C10_AS_INTARRAYREF_SLOW(stride));
               });
  library.impl("set_.source_Tensor", [](Tensor& tensor, const Tensor& source) -> Tensor& {
    return at::native::set_tensor_(tensor, source);
  });
  library.impl("set_.source_Storage", [](Tensor& tensor, at::Storage storage) -> Tensor& {
    return at::native::set_(tensor, storage);
  });
  library.impl("set_.source_Storage_storage_offset",
               [](Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                  c10::IntArrayRef stride) -> Tensor& {
                 return at::cpu::set_(tensor, storage, offset, size, stride);
               });
  // torch composes these of others where a device has none, and rounds otherwise than the CPU.  Found
  // by a walk over its op_db (see sim.py).
  for (const char* name : {"native_layer_norm", "native_layer_norm_backward", "native_group_norm",
                           "native_group_norm_backward", "addr", "silu_backward", "mish_backward"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  // The CPU's cell is fused otherwise, and its fft of a hidden pointer would be a crash.
  for (const char* name : {"_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_fft_r2c", "_fft_c2r",
                           "_fft_c2c"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

#define SIM_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SIM_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SIM_FLOAT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define SIM_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  auto& m = library;  // the name that torch's macros use
  AT_FORALL_LOWER_PRECISION_FP(SIM_LOWER)
  AT_FORALL_FP32(SIM_FLOAT)
  AT_FORALL_FP32_SET_OPT_DTYPE(SIM_FLOAT_DTYPE)
  AT_FORALL_PROMOTE(SIM_PROMOTE)
}

// Run a Python function on the device's current stream, with host aliases of the tensors.
void launch(int device, const std::vector<Tensor>& tensors, py::object function) {
  std::vector<Tensor> aliases;
  for (const auto& each : tensors) {
    TORCH_CHECK(is_sim(each), "sim tensors only");
    aliases.push_back(host_alias(each));
  }
  auto* kept = new py::object(std::move(function));
  py::gil_scoped_release released;
  current(device).queue([aliases, kept]() mutable {
    py::gil_scoped_acquire held;
    std::unique_ptr<py::object> own(kept);
    try {
      (*kept)(aliases);
    } catch (py::error_already_set& error) {
      const std::string text = error.what();
      throw std::runtime_error(text);
    }
    aliases.clear();
  });
}

void set_async(bool is_async, long delay_us, long seed) {
  py::gil_scoped_release released;
  for (int device = 0; device < settings().num_devices; device++) streams().synchronize(device);
  settings().is_async = is_async;
  settings().delay_us = delay_us;
  settings().seed = seed;
  for (int device = 0; device < settings().num_devices; device++) streams().draw_anew(device);
}

// Call a Python function, with no arguments, before each wait for a device; None: no more.
void watch_waits(py::object function) {
  if (function.is_none()) {
    on_wait() = nullptr;
    return;
  }
  auto* kept = new py::object(std::move(function));
  on_wait() = [kept] {
    py::gil_scoped_acquire held;
    (*kept)();
  };
}

}  // namespace sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &sim::choose_attention)
}

// What a stream waits for until the host opens it, as a kernel does that waits for another machine.
struct Gate {
  std::shared_ptr<sim::Point> point = std::make_shared<sim::Point>(0);
  void hold(int device) { sim::current(device).wait_for(point); }
  void open() { point->reach(); }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  at::RegisterPrivateUse1HooksInterface(new sim::Hooks);
  py::class_<Gate>(module, "Gate")
      .def(py::init<>())
      .def("hold", &Gate::hold, py::call_guard<py::gil_scoped_release>())
      .def("open", &Gate::open);
  module.def("launch", sim::launch);
  module.def("set_async", sim::set_async);
  module.def("watch_waits", sim::watch_waits);
  module.def("forbid_reads", [](bool is_forbidden) { sim::is_reading_forbidden = is_forbidden; });
  module.def("is_async", [] { return sim::settings().is_async; });
  module.def("num_devices", [] { return sim::settings().num_devices; });
  module.def("fail", [](int device, const std::string& text) { sim::errors().set(device, text); });
  module.def("limit_memory", [](size_t bytes) { sim::limit_bytes() = bytes; });
  module.def("collectives", [](c10::intrusive_ptr<c10d::Backend> host) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<sim::Collectives>(host));
  });
  module.def("default_generator", [](int device) { return sim::default_generator(device); });
}
