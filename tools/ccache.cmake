# Compiles through ccache, so that a clone in another folder, and a build folder that was removed, take what was compiled before.
# Paths below the clone are taken as relative. The compilers and the instruction sets that -march=native stands for are part of
# the key: what was compiled on another CPU is no hit. The key is made when CMake runs, as every `make` lets it. Where the cache
# lies and how large it grows is the user's setting of ccache.
if(NOT NEMOCUBE_CCACHE OR CMAKE_CXX_COMPILER_LAUNCHER)
  return()
endif()
find_program(NEMOCUBE_CCACHE_PROGRAM ccache)
find_program(env_program env)
if(NOT NEMOCUBE_CCACHE_PROGRAM OR NOT env_program)
  return()
endif()
# The lines with the version and with the command of the compiler proper, without the folder in which it runs. Other lines hold
# search paths, which the environment decides. nvcc hands host code to the g++ of PATH.
set(compilers "")
foreach(compiler ${CMAKE_CXX_COMPILER} g++)
  execute_process(COMMAND ${compiler} -v -march=native -E -x c++ /dev/null OUTPUT_QUIET ERROR_VARIABLE said)
  string(REGEX MATCHALL "[^\n]*( version |cc1)[^\n]*" lines "${said}")
  string(REGEX REPLACE "-f[a-z-]*compilation-dir=[^ ]*" "" lines "${lines}")
  if(NOT lines STREQUAL compilers)
    string(APPEND compilers "${lines}")
  endif()
endforeach()
if(NOT compilers)
  return()
endif()
# The key of C++ does not hold nvcc: a build under AddressSanitizer has none, and takes the test files of one that has.
set(nvcc_version "")
if(CMAKE_CUDA_COMPILER)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_version)
endif()
string(SHA256 cxx_key "${compilers}")
string(SHA256 cuda_key "${compilers}${nvcc_version}")
foreach(language cxx cuda)
  set(${language}_through_ccache ${env_program} CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_COMPILERCHECK=string:${${language}_key} ${NEMOCUBE_CCACHE_PROGRAM})
endforeach()
# ccache fails where it cannot make its folder.
file(WRITE ${CMAKE_BINARY_DIR}/ccache_works.cpp "int main() {}\n")
execute_process(COMMAND ${cxx_through_ccache} ${CMAKE_CXX_COMPILER} -c ccache_works.cpp -o ccache_works.o
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR} RESULT_VARIABLE ccache_failed OUTPUT_QUIET ERROR_VARIABLE said)
if(ccache_failed)
  message(WARNING "ccache does not work here, and is left out: ${said}")
  return()
endif()
set(CMAKE_CXX_COMPILER_LAUNCHER ${cxx_through_ccache})
set(CMAKE_CUDA_COMPILER_LAUNCHER ${cuda_through_ccache})
# Without this option of GCC ccache cannot tell what a file with a precompiled header includes.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
