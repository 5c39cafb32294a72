# Tests of doctest's suite "cuda", of every test program, on the software GPU, and whole runs of the program, which start it
# themselves: label device. Most run at two seeds of it, which order threads, blocks and streams in two ways. A warning of
# the software GPU fails as an error does. The second seed is CUDA_EMULATOR_SEED of the environment (make test-cuda).

# Cases that run at one seed: those that look at memory or counters or choose seeds themselves, and long runs of kernels
# that have tests of their own at both.
set(cases_of_seed_1
  "planned_step: *"
  "step graphs: the peak of memory *"
  "timeline: *"
  "device: operations on the software GPU *"
  "cuda: a run repeats its bits *"
  "cuda: a pipeline of two ranks *"
  "cuda: README's line *")
set(cases_of_seed_2
  "peft training: *"
  "step graphs: adapters *"
  "step graphs: a capacity *"
  "forward: on cuda* against *"
  "cuda: a run that began on the CPU *"
  "cuda: a run by CUDA graphs *"
  "cuda: two ranks *"
  "profile: *")
# RANKS/DEVICES on which grids train. Ranks with a device each use NCCL, ranks that share one use MPI.
set(grids_of_seed_1 2/2 4/1)
set(grids_of_seed_2 2/1 4/4)
# Devices of the two ranks that replay steps as CUDA graphs: these cases are long, so each seed has one number of devices.
set(graph_devices_of_seed_1 2)
set(graph_devices_of_seed_2 1)

# device_test(NAME SEED COMMAND...)
function(device_test name seed)
  add_test(NAME device-${name}-seed-${seed} COMMAND ${ARGN})
  set(environment NEMOCUBE_TEST_CUDA=required OMP_WAIT_POLICY=passive CUDA_EMULATOR_STRICT=1
    CUDA_EMULATOR_LIBRARIES=${CMAKE_BINARY_DIR}/cuda_emulator ${mpi_environment})
  if(seed EQUAL 1)
    list(APPEND environment CUDA_EMULATOR_SEED=1)
  endif()
  if(name MATCHES "^(comm|grids)")
    list(APPEND environment OMP_NUM_THREADS=1)
  endif()
  set_tests_properties(device-${name}-seed-${seed} PROPERTIES LABELS device TIMEOUT 1800 PROCESSORS 2
    ENVIRONMENT "${environment}")
endfunction()

set(emulator ${CMAKE_SOURCE_DIR}/tools/cuda_emulator/run)
foreach(seed 1 2)
  math(EXPR other "3 - ${seed}")
  list(JOIN cases_of_seed_${other} "," others)
  set(cases ${durations} --test-suite=cuda --test-case-exclude=${others})
  foreach(folder core ops model parallel data train)
    device_test(${folder} ${seed} ${emulator} ${CMAKE_BINARY_DIR}/test_${folder} ${cases})
  endforeach()
  device_test(runs ${seed} ${CMAKE_BINARY_DIR}/test_tests ${cases})
  foreach(devices 1 2)
    set(graphs)
    if(NOT devices EQUAL graph_devices_of_seed_${seed})
      set(graphs "--test-case-exclude=step graphs: *")
    endif()
    device_test(comm-2-${devices} ${seed} ${mpirun} -np 2 ${emulator} --devices ${devices}
      ${CMAKE_BINARY_DIR}/test_comm ${durations} --test-suite=cuda ${graphs})
  endforeach()
  foreach(grids ${grids_of_seed_${seed}})
    string(REPLACE "/" ";" numbers ${grids})
    list(POP_FRONT numbers ranks devices)
    device_test(grids-${ranks}-${devices} ${seed} ${mpirun} -np ${ranks} ${emulator} --devices ${devices}
      ${CMAKE_BINARY_DIR}/test_grids ${durations} --test-suite=cuda)
  endforeach()
endforeach()

# What the label cuda-emulator-short needs of the software GPU's own tests, without its other CUDA programs, which take nvcc a minute.
add_custom_target(device_short_tests DEPENDS cuda_emulator test_runtime test_nccl test_blas test_traffic test_timeline
  test_faults)
foreach(program faults static_runtime traffic program_language program_processes program_streams program_synchronisation)
  add_dependencies(device_short_tests cuda_emulator_${program})
endforeach()
