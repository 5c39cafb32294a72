#pragma once
#include <utility>

namespace emulator {

/// An object that each thread has for itself, made when the thread first asks for it. It is destroyed with the thread, but
/// may be asked for at any later time: kernels that are left run among the exit handlers of the process, when the
/// thread_local objects of the main thread have been destroyed. What is made then stays until the process ends.
/// `Use` tells objects of one type apart.
template <class T, class Use = T>
class ThreadObject {
 public:
  static T& get() {
    if (!object_) [[unlikely]]
      make();
    return *object_;
  }

 private:
  struct Owner {
    ~Owner() { delete std::exchange(object_, nullptr); }
  };
  static void make() {
    [[maybe_unused]] thread_local const Owner owner{};  // destroyed once, whatever is made later
    object_ = new T;
  }
  static constinit inline thread_local T* object_ = nullptr;
};

}  // namespace emulator
