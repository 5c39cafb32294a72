# Installs into a folder of its own and runs the installed program on the installed recipe.
set(stage ${BUILD}/install_test)
file(REMOVE_RECURSE ${stage})
execute_process(COMMAND ${CMAKE_COMMAND} -E env DESTDIR=${stage} ${CMAKE_COMMAND} --install ${BUILD} --prefix /prefix
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(prefix ${stage}/prefix)
foreach(file bin/nemocube lib/nemocube/nemocube_mpi.so share/doc/nemocube/README.md share/doc/nemocube/CHANGELOG.md share/doc/nemocube/LICENSE
    share/doc/nemocube/docs/architecture.md share/nemocube/data/samples/LICENSE)
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
