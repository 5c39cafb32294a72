# Run as a script: writes OUTPUT, which compiles the test files of FILES as one. Their headers come first; then each file has a
# namespace of its own, so that helpers of different files may have the same name. SOURCE is the folder that their paths are
# relative to.
set(headers)
set(bodies)
foreach(file ${FILES})
  file(STRINGS ${SOURCE}/${file} lines REGEX "^#include ")
  list(APPEND headers ${lines})
  string(MAKE_C_IDENTIFIER ${file} name)
  string(APPEND bodies "namespace ${name} {\n#include \"${file}\"\n}\n")
endforeach()
list(SORT headers)
list(REMOVE_DUPLICATES headers)
list(JOIN headers "\n" headers)
file(WRITE ${OUTPUT} "${headers}\n${bodies}")
