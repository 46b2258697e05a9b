// Memory of the test accelerator, which code on the CPU cannot touch.
//
// A device pointer lies in a range without access, for ever; its bytes are in a second range at the
// same distance from the start, which only kernels know.  A stray access is a SIGSEGV with a line.
//
// A freed block is used again in the order of the stream that it was made on, and full of NaN until
// then: who uses it on another stream without `record_stream` reads or spoils another tensor.
#pragma once

#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include <sys/mman.h>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "streams.h"

namespace sim {

constexpr size_t kDeviceBytes = 1ull << 32;  // addresses of one device
constexpr size_t kSmallest = 512;            // bytes of a block
constexpr size_t kLarge = 1u << 20;          // from here on blocks are not powers of two

inline size_t& limit_bytes() {
  static size_t it = std::min<size_t>(from_environment("SIM_MEM_MB", 4096) << 20, kDeviceBytes);
  return it;
}

struct Ranges {
  char* addresses;  // what tensors have
  char* bytes;      // what kernels read and write
};

inline const Ranges& ranges() {
  static const Ranges it = [] {
    auto map = [](int protection) {
      void* range = mmap(nullptr, kDeviceBytes * kMaxDevices, protection,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(range != MAP_FAILED, "sim: no address space");
      return static_cast<char*>(range);
    };
    return Ranges{map(PROT_NONE), map(PROT_READ | PROT_WRITE)};
  }();
  return it;
}

inline bool is_device_pointer(const void* pointer) {
  auto* at = static_cast<const char*>(pointer);
  return at >= ranges().addresses && at < ranges().addresses + kDeviceBytes * kMaxDevices;
}

inline char* bytes_at(const void* pointer) {
  if (!pointer) return nullptr;
  TORCH_CHECK(is_device_pointer(pointer), "sim: not a pointer of a device");
  return ranges().bytes + (static_cast<const char*>(pointer) - ranges().addresses);
}

struct Block {
  char* pointer;
  size_t size;
  int device;
  long stream;
  std::set<long> also_on = {};  // streams named by `record_stream`
  std::vector<std::shared_ptr<Point>> awaited = {};
};

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const int device = current_device;
    const long stream = current_stream[device];
    errors().check(device);
    if (!size) return {nullptr, nullptr, [](void*) {}, c10::Device(kSim, device)};
    const size_t rounded = round_up(size);
    std::lock_guard lock(mutex_);
    take_back_awaited();
    Block* block = nullptr;
    auto& free = free_[{device, stream, rounded}];
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
    } else {
      TORCH_CHECK_WITH(OutOfMemoryError, top_[device] + rounded <= limit_bytes(),
                       "sim out of memory. Tried to allocate ", size, " bytes on sim:", device);
      block = new Block{ranges().addresses + device * kDeviceBytes + top_[device], rounded, device,
                        stream};
      top_[device] += rounded;
    }
    used_[device] += rounded;
    peak_[device] = std::max(peak_[device], used_[device]);
    return {block->pointer, block, &give_back, c10::Device(kSim, device)};
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    auto* block = static_cast<Block*>(data.get_context());
    if (!block || stream.id() == block->stream) return;
    std::lock_guard lock(mutex_);
    block->also_on.insert(stream.id());
  }

  void copy_data(void* target, const void* source, size_t size) const override {
    current(current_device).queue([to = bytes_at(target), from = bytes_at(source), size] {
      std::memcpy(to, from, size);
    });
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void resetAccumulatedStats(c10::DeviceIndex) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    std::lock_guard lock(mutex_);
    stats.allocated_bytes[0].current = static_cast<int64_t>(used_[device]);
    stats.allocated_bytes[0].peak = static_cast<int64_t>(peak_[device]);
    stats.reserved_bytes[0].current = static_cast<int64_t>(top_[device]);
    stats.reserved_bytes[0].peak = static_cast<int64_t>(top_[device]);
    return stats;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex_);
    peak_[device] = used_[device];
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {limit_bytes() - used_[device], limit_bytes()};
  }

 private:
  static size_t round_up(size_t size) {
    if (size > kLarge) return (size + 65535) / 65536 * 65536;
    size_t rounded = kSmallest;
    while (rounded < size) rounded *= 2;
    return rounded;
  }

  static void give_back(void* context);

  void set_free(Block* block) {
    // NaN, for every floating type.  In the block's own stream: what was queued there may read it.
    streams().get(block->device, block->stream).queue(
        [to = bytes_at(block->pointer), size = block->size] { std::memset(to, 0xff, size); });
    free_[{block->device, block->stream, block->size}].push_back(block);
  }

  void take_back_awaited() {
    std::vector<Block*> rest;
    for (auto* block : awaited_) {
      bool is_over = true;
      for (auto& point : block->awaited) is_over &= point->is_reached();
      if (!is_over) {
        rest.push_back(block);
        continue;
      }
      block->awaited.clear();
      set_free(block);
    }
    awaited_ = std::move(rest);
  }

  std::mutex mutex_;
  std::map<std::tuple<int, long, size_t>, std::vector<Block*>> free_;
  std::vector<Block*> awaited_;  // freed, and perhaps still used on another stream
  size_t top_[kMaxDevices] = {}, used_[kMaxDevices] = {}, peak_[kMaxDevices] = {};
};

inline DeviceMemory& device_memory() {
  static auto* it = new DeviceMemory;
  return *it;
}

inline void DeviceMemory::give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  auto& memory = device_memory();
  std::lock_guard lock(memory.mutex_);
  memory.used_[block->device] -= block->size;
  if (!settings().is_async) block->also_on.clear();
  for (long stream : block->also_on)
    block->awaited.push_back(streams().get(block->device, stream).record());
  block->also_on.clear();
  if (block->awaited.empty())
    memory.set_free(block);
  else
    memory.awaited_.push_back(block);
}

// Host memory that copies may read and write behind the caller's back.
class PinnedMemory final : public at::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    auto* memory = static_cast<char*>(std::aligned_alloc(64, (size + 127) / 64 * 64));
    {
      std::lock_guard lock(mutex_);
      sizes_[memory] = std::max<size_t>(size, 1);
    }
    return {memory, memory, &give_back, c10::kCPU};
  }
  bool has(const void* pointer) {
    auto* at = static_cast<const char*>(pointer);
    std::lock_guard lock(mutex_);
    auto next = sizes_.upper_bound(at);
    if (next == sizes_.begin()) return false;
    --next;
    return at < next->first + next->second;
  }
  void copy_data(void* target, const void* source, size_t size) const override {
    std::memcpy(target, source, size);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

 private:
  static void give_back(void* memory);

  std::mutex mutex_;
  std::map<const char*, size_t> sizes_;
};

inline PinnedMemory& pinned_memory() {
  static auto* it = new PinnedMemory;
  return *it;
}

inline void PinnedMemory::give_back(void* memory) {
  auto& pinned = pinned_memory();
  {
    std::lock_guard lock(pinned.mutex_);
    pinned.sizes_.erase(static_cast<char*>(memory));
  }
  std::free(memory);
}

}  // namespace sim
