// Streams of the test accelerator: what is queued on one runs in order, on a thread of its own.
//
// A thread sleeps before some of what it runs, by a seeded generator, so that work which nothing
// orders does come in another order.  Synchronous streams run everything at once.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

namespace sim {

constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 8;

inline long from_environment(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atol(value) : otherwise;
}

struct Settings {
  int num_devices = static_cast<int>(from_environment("SIM_DEVICES", 2));
  bool is_async = from_environment("SIM_ASYNC", 0) != 0;
  long delay_us = from_environment("SIM_DELAY_US", 300);  // longest sleep before a kernel
  long seed = from_environment("SIM_SEED", 0);
};

inline Settings& settings() {
  static auto* it = new Settings;  // never destroyed: threads of streams outlive the interpreter
  return *it;
}

// Called on the thread that is about to wait for a device; counts waits by caller.
inline std::function<void()>& on_wait() {
  static auto* it = new std::function<void()>;
  return *it;
}

// Whether this thread may ask for what a device has computed.
inline thread_local bool is_reading_forbidden = false;

inline void check_reading() {
  TORCH_CHECK(!is_reading_forbidden, "sim: a device is read or waited for where that is forbidden");
}

inline void note_wait() {
  check_reading();
  if (on_wait()) on_wait()();
}

// A point in a stream: reached once all that was queued before it has run.
class Point {
 public:
  explicit Point(int of) : device(of) {}
  const int device;

  void reach() {
    {
      std::lock_guard lock(mutex_);
      reached_ = true;
      at_ = std::chrono::steady_clock::now();
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }
  bool is_reached() {
    std::lock_guard lock(mutex_);
    return reached_;
  }
  double ms_until(Point& later) const {
    return std::chrono::duration<double, std::milli>(later.at_ - at_).count();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point at_;
};

// The device and stream that this thread uses.
inline thread_local int current_device = 0;
inline thread_local long current_stream[kMaxDevices] = {};

// The first error of a device stays: nothing works there any more in this process.
class Errors {
 public:
  void set(int device, const std::string& text) {
    std::lock_guard lock(mutex_);
    if (text_[device].empty()) text_[device] = text.substr(0, 400);
  }
  void check(int device) {
    std::lock_guard lock(mutex_);
    if (text_[device].empty()) return;
    if (is_told_[device]) std::fprintf(stderr, "sim:%d was used after it had failed\n", device);
    is_told_[device] = true;
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 1, "sim error: " + text_[device]);
  }

 private:
  std::mutex mutex_;
  std::string text_[kMaxDevices];
  bool is_told_[kMaxDevices] = {};
};

inline Errors& errors() {
  static auto* it = new Errors;
  return *it;
}

class Stream {
 public:
  using Task = std::function<void()>;

  Stream(int device, long id) : device_(device), id_(id) { draw_anew(); }

  void draw_anew() {
    std::lock_guard lock(mutex_);
    random_.seed(settings().seed * 1000003 + device_ * 101 + id_);
  }

  void queue(Task task) {
    if (!settings().is_async) {
      const int device = current_device;
      const long stream = current_stream[device_];
      task();
      current_device = device;
      current_stream[device_] = stream;
      return;
    }
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!is_started_) {
      is_started_ = true;
      std::thread([this] { work(); }).detach();
    }
    changed_.notify_one();
  }

  std::shared_ptr<Point> record() {
    auto point = std::make_shared<Point>(device_);
    queue([point] { point->reach(); });
    return point;
  }

  // What is queued here from now on runs after that point of another stream.
  void wait_for(std::shared_ptr<Point> point) {
    if (point) queue([point] { point->wait(); });
  }

  bool is_idle() {
    std::lock_guard lock(mutex_);
    return tasks_.empty() && !is_busy_;
  }

  void synchronize() {
    note_wait();
    {
      std::unique_lock lock(mutex_);
      idle_.wait(lock, [&] { return tasks_.empty() && !is_busy_; });
    }
    errors().check(device_);
  }

  int device() const { return device_; }
  long id() const { return id_; }

 private:
  void work() {
    current_device = device_;
    current_stream[device_] = id_;
    while (true) {
      Task task;
      long sleep_us = 0;
      {
        std::unique_lock lock(mutex_);
        is_busy_ = false;
        if (tasks_.empty()) idle_.notify_all();
        changed_.wait(lock, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
        is_busy_ = true;
        const auto drawn = random_();
        if (drawn % 8 == 0 && settings().delay_us) sleep_us = (drawn >> 8) % settings().delay_us;
      }
      if (sleep_us) std::this_thread::sleep_for(std::chrono::microseconds(sleep_us));
      try {
        task();
      } catch (const std::exception& error) {
        errors().set(device_, error.what());
      }
    }
  }

  const int device_;
  const long id_;
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<Task> tasks_;
  bool is_busy_ = false, is_started_ = false;
  std::mt19937_64 random_;
};

class Streams {
 public:
  Stream& get(int device, long id) {
    std::lock_guard lock(mutex_);
    auto& all = of_[device];
    while (static_cast<long>(all.size()) <= id)
      all.push_back(new Stream(device, static_cast<long>(all.size())));  // never destroyed
    return *all[id];
  }
  Stream& add(int device) {
    get(device, 0);
    long id;
    {
      std::lock_guard lock(mutex_);
      id = static_cast<long>(of_[device].size());
    }
    return get(device, id);
  }
  void synchronize(int device) {
    for (auto* each : all_of(device)) each->synchronize();
  }
  void draw_anew(int device) {
    for (auto* each : all_of(device)) each->draw_anew();
  }

 private:
  std::vector<Stream*> all_of(int device) {
    get(device, 0);
    std::lock_guard lock(mutex_);
    return of_[device];
  }

  std::mutex mutex_;
  std::vector<Stream*> of_[kMaxDevices];
};

inline Streams& streams() {
  static auto* it = new Streams;
  return *it;
}

inline Stream& current(int device) { return streams().get(device, current_stream[device]); }

inline c10::Stream as_torch(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, stream.device()), stream.id());
}

inline Stream& from_torch(const c10::Stream& stream) {
  return streams().get(stream.device_index(), stream.id());
}

}  // namespace sim
