// Compiles SYCL kernels at run time by the compiler inside Intel's runtime, and says what it says.
//
// Source: the extensions sycl_ext_oneapi_kernel_compiler and sycl_ext_oneapi_free_function_kernels of DPC++;
// behaviour of intel-sycl-rt 2026.2.
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include <sycl/sycl.hpp>

namespace experimental = sycl::ext::oneapi::experimental;

// The compiler calls its input rtc_0.cpp, rtc_1.cpp and so on.
static std::string named(std::string text, const std::string &name) {
  for (size_t at = text.find("rtc_"); at != std::string::npos; at = text.find("rtc_", at + 1)) {
    size_t end = text.find_first_not_of("0123456789", at + 4);
    if (end != std::string::npos && end > at + 4 && text.compare(end, 4, ".cpp") == 0)
      text.replace(at, end + 4 - at, name);
  }
  return text;
}

int main(int count, char **names) {
  sycl::queue queue;
  if (!queue.get_device().ext_oneapi_can_compile(experimental::source_language::sycl)) {
    std::cerr << "clang: error: this device compiles no SYCL at run time\n";
    return 2;
  }
  bool failed = false;
  for (int n = 1; n < count; ++n) {
    std::stringstream text;
    text << std::ifstream(names[n]).rdbuf();
    std::string log;
    try {
      auto source = experimental::create_kernel_bundle_from_source(
          queue.get_context(), experimental::source_language::sycl, text.str());
      experimental::build(source, experimental::properties{experimental::save_log{&log}});
    } catch (const std::exception &error) {
      failed = true;
      log += error.what();
    }
    std::stringstream lines(named(log, names[n]));
    for (std::string line; std::getline(lines, line);) {
      size_t start = line.find_first_not_of('\t');
      std::cerr << (start == std::string::npos ? "" : line.substr(start)) << "\n";
    }
  }
  return failed;
}
