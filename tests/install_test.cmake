# Installs into a folder of its own and runs the installed program on the installed recipe.
set(stage ${BUILD}/install_test)
file(REMOVE_RECURSE ${stage})
execute_process(COMMAND ${CMAKE_COMMAND} -E env DESTDIR=${stage} ${CMAKE_COMMAND} --install ${BUILD} --prefix /prefix
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(prefix ${stage}/prefix)
foreach(file bin/nemocube lib/nemocube/nemocube_mpi.so share/doc/nemocube/README.md share/doc/nemocube/CHANGELOG.md share/doc/nemocube/LICENSE
    share/doc/nemocube/docs/architecture.md share/nemocube/data/samples/LICENSE share/nemocube/tools/launch/mpirun.sh
    share/nemocube/tools/launch/slurm.sbatch share/nemocube/tools/launch/bind.sh share/nemocube/tools/launch/topology)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "make install left out ${file}")
  endif()
endforeach()
if(EXISTS ${BUILD}/nemocube_cuda.so AND NOT EXISTS ${prefix}/lib/nemocube/nemocube_cuda.so)
  message(FATAL_ERROR "make install left out lib/nemocube/nemocube_cuda.so")
endif()
if(EXISTS ${BUILD}/cuda_emulator/libcudart.so.13)
  file(GLOB libraries RELATIVE ${BUILD}/cuda_emulator ${BUILD}/cuda_emulator/lib*)
  foreach(file run ${libraries})
    if(NOT EXISTS ${prefix}/lib/nemocube/cuda_emulator/${file})
      message(FATAL_ERROR "make install left out lib/nemocube/cuda_emulator/${file}")
    endif()
  endforeach()
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=CUDA_EMULATOR_LIBRARIES --unset=LD_LIBRARY_PATH
      ${prefix}/lib/nemocube/cuda_emulator/run
      ${prefix}/bin/nemocube bench op --op relu2 --device cuda --small --repeats 1
    OUTPUT_QUIET ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
endif()
set(FOLDER ${prefix})
include(${CMAKE_CURRENT_LIST_DIR}/search_paths.cmake)
execute_process(COMMAND ${prefix}/bin/nemocube train --check configs/squad_tiny.yaml
    --set checkpoint.checkpoint_dir=${stage}/run
  WORKING_DIRECTORY ${prefix}/share/nemocube OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

# The scripts that start ranks take the program of their installation, from any folder.
execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=NEMOCUBE --unset=SLURM_JOB_NUM_NODES
    ${prefix}/share/nemocube/tools/launch/mpirun.sh --per-node 2 --dry-run recipe.yaml
  WORKING_DIRECTORY ${stage} OUTPUT_VARIABLE command COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "/bind.sh ([^ ]+/bin/nemocube) train recipe.yaml\n$" found "${command}")
if(NOT EXISTS "${CMAKE_MATCH_1}")
  message(FATAL_ERROR "the installed mpirun.sh starts no program of the installation: ${command}")
endif()
