# cmake -DSOURCE=FOLDER -DTO=FILE -P commit.cmake: the commit of a source folder as a C string, "unknown" outside of git. The file
# is written only when it changes.
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET RESULT_VARIABLE failed)
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-toplevel OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
  RESULT_VARIABLE outside)
get_filename_component(source "${SOURCE}" REALPATH)
get_filename_component(top "${top}" REALPATH)
if(failed OR outside OR NOT top STREQUAL source) # of another repository, in which this one's sources lie
  set(commit unknown)
endif()
set(text "extern const char quire_commit[];\nconst char quire_commit[] = \"${commit}\";\n")
if(EXISTS ${TO})
  file(READ ${TO} before)
endif()
if(NOT text STREQUAL "${before}")
  file(WRITE ${TO} "${text}")
endif()
