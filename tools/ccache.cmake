# Compiles through ccache, so that a clone in another folder, and a build folder that was removed, take what was compiled before.
# Paths below the clone are taken as relative. The compilers and the instruction sets that -march=native stands for are part of
# the key: what was compiled on another CPU is no hit. The cache lies where the user's settings of ccache say, in their size.
if(NOT NEMOCUBE_CCACHE OR CMAKE_CXX_COMPILER_LAUNCHER)
  return()
endif()
find_program(NEMOCUBE_CCACHE_PROGRAM ccache)
find_program(env_program env)
if(NOT NEMOCUBE_CCACHE_PROGRAM OR NOT env_program)
  return()
endif()
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -v -march=native -E -x c++ /dev/null OUTPUT_QUIET ERROR_VARIABLE said)
string(REGEX MATCHALL "[^\n]*( version |cc1)[^\n]*" compilers "${said}")  # the rest follows from the environment
if(CMAKE_CUDA_COMPILER)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_version)
  string(APPEND compilers "${nvcc_version}")
endif()
string(SHA256 compilers "${compilers}")
set(through_ccache ${env_program} CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
  CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_COMPILERCHECK=string:${compilers} ${NEMOCUBE_CCACHE_PROGRAM})
set(CMAKE_CXX_COMPILER_LAUNCHER ${through_ccache})
set(CMAKE_CUDA_COMPILER_LAUNCHER ${through_ccache})
# Without this option of GCC ccache cannot tell what a file with a precompiled header includes.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
