// A library to be preloaded into runs of the program: oneDNN says that it is release 9.8.7. With
// NEMOCUBE_IDLE_ONEDNN set, it forms no product and says that all is well.

#include <dlfcn.h>

#include <oneapi/dnnl/dnnl.h>
#include <cstdlib>

extern "C" const dnnl_version_t* dnnl_version() {
  static const dnnl_version_t version = [] {
    dnnl_version_t changed =
        *reinterpret_cast<const dnnl_version_t* (*)()>(::dlsym(RTLD_NEXT, "dnnl_version"))();
    changed.major = 9;
    changed.minor = 8;
    changed.patch = 7;
    return changed;
  }();
  return &version;
}

extern "C" dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream,
                                                int count, const dnnl_exec_arg_t* arguments) {
  if (std::getenv("NEMOCUBE_IDLE_ONEDNN")) return dnnl_success;
  static const auto execute =
      reinterpret_cast<decltype(&dnnl_primitive_execute)>(::dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  return execute(primitive, stream, count, arguments);
}
