// Generators of the test accelerator: a seed and an offset, as Philox has on other accelerators.
// The numbers are those of a CPU generator that is seeded anew for each kernel.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "streams.h"

namespace sim {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(int device)
      : GeneratorImpl(c10::Device(kSim, device),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(std::random_device{}());
    return seed_;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }

  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.is_cpu(), "a sim generator's state is 16 host bytes");
    auto* words = static_cast<const uint64_t*>(state.data());
    seed_ = words[0];
    offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({16}, at::TensorOptions(at::kByte).device(at::kCPU));
    auto* words = static_cast<uint64_t*>(state.data_ptr());
    words[0] = seed_;
    words[1] = offset_;
    return state.getIntrusivePtr();
  }

  // A generator for one kernel; the next kernel gets other numbers.
  at::Generator next() {
    std::lock_guard lock(next_);
    offset_ += 4;
    uint64_t mixed = seed_ * 0x9E3779B97F4A7C15ull + offset_ * 0xBF58476D1CE4E5B9ull;
    mixed ^= mixed >> 29;
    return at::detail::createCPUGenerator(mixed * 0x94D049BB133111EBull);
  }

 private:
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  std::mutex next_;
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
};

inline const at::Generator& default_generator(int device) {
  static const auto* all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int each = 0; each < kMaxDevices; each++)
      made->push_back(at::make_generator<Generator>(each));
    return made;
  }();
  return (*all)[device < 0 ? current_device : device];
}

inline at::Generator generator_of_kernel(const std::optional<at::Generator>& given, int device) {
  auto generator = given && given->defined() ? *given : default_generator(device);
  TORCH_CHECK(generator.device().type() == kSim,
              "Expected a 'sim' device type for generator but found '", generator.device().type(),
              "'");
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->next();
}

}  // namespace sim
