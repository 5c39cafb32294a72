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
execute_process(COMMAND ${prefix}/bin/nemocube train --check configs/squad_tiny.yaml
    --set checkpoint.checkpoint_dir=${stage}/run
  WORKING_DIRECTORY ${prefix}/share/nemocube OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
