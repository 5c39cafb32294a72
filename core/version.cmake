# Run at every build, as a script: writes OUTPUT from core/version.cpp.in with the commit that SOURCE stands at.
# configure_file leaves a file alone whose text would be the same, so nothing is compiled without a new commit.
set(VERSION_TEXT ${VERSION})
if(GIT)
  # Sources unpacked inside some other repository must not take that one's commit, hence --show-prefix.
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-prefix
    OUTPUT_VARIABLE prefix ERROR_QUIET RESULT_VARIABLE outside OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --short=7 HEAD
    OUTPUT_VARIABLE commit ERROR_QUIET RESULT_VARIABLE no_commit OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT outside AND NOT no_commit AND prefix STREQUAL "")
    execute_process(COMMAND ${GIT} --no-optional-locks -C ${SOURCE} status --porcelain --untracked-files=no
      OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND commit "-dirty")
    endif()
    set(VERSION_TEXT "${VERSION} (${commit})")
  endif()
endif()
configure_file(${SOURCE}/core/version.cpp.in ${OUTPUT} @ONLY)
