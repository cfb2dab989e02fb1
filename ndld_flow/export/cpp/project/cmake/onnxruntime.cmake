# Defines runtime::runtime: ONNX Runtime, from the first of these that is there:
#   ONNXRUNTIME_ROOT      a folder with include/ and lib/, such as an unpacked release
#   find_package          an installed onnxruntimeConfig.cmake (CMAKE_PREFIX_PATH, onnxruntime_DIR)
#   ONNXRUNTIME_URL       an archive of a release to download, with ONNXRUNTIME_SHA256; see README.md

set(RUNTIME_SOURCE src/model_onnxruntime.cpp)
set(ONNXRUNTIME_ROOT "" CACHE PATH "Folder with ONNX Runtime's include/ and lib/")
set(ONNXRUNTIME_URL "" CACHE STRING "Archive of a release of ONNX Runtime to download")
set(ONNXRUNTIME_SHA256 "" CACHE STRING "SHA-256 of that archive")

add_library(runtime::runtime INTERFACE IMPORTED)

if(NOT ONNXRUNTIME_ROOT)
  find_package(onnxruntime CONFIG QUIET)
endif()
if(onnxruntime_FOUND)
  message(STATUS "ONNX Runtime ${onnxruntime_VERSION}: ${onnxruntime_DIR}")
  target_link_libraries(runtime::runtime INTERFACE onnxruntime::onnxruntime)
  return()
endif()

if(NOT ONNXRUNTIME_ROOT AND ONNXRUNTIME_URL)
  if(NOT ONNXRUNTIME_SHA256)
    message(FATAL_ERROR "Set ONNXRUNTIME_SHA256 to the archive's SHA-256, which its release page lists.")
  endif()
  include(FetchContent)
  FetchContent_Declare(onnxruntime_release
    URL "${ONNXRUNTIME_URL}" URL_HASH "SHA256=${ONNXRUNTIME_SHA256}"
    SOURCE_SUBDIR no_cmake_project)
  FetchContent_MakeAvailable(onnxruntime_release)
  set(ONNXRUNTIME_ROOT "${onnxruntime_release_SOURCE_DIR}")
endif()

if(ONNXRUNTIME_ROOT)
  set(only NO_DEFAULT_PATH)
endif()
find_path(ONNXRUNTIME_INCLUDE onnxruntime_cxx_api.h HINTS "${ONNXRUNTIME_ROOT}"
  PATH_SUFFIXES include include/onnxruntime include/onnxruntime/core/session ${only})
find_library(ONNXRUNTIME_LIBRARY onnxruntime HINTS "${ONNXRUNTIME_ROOT}"
  PATH_SUFFIXES lib lib64 ${only})
if(NOT ONNXRUNTIME_INCLUDE OR NOT ONNXRUNTIME_LIBRARY)
  message(FATAL_ERROR
    "ONNX Runtime is not installed. Set ONNXRUNTIME_ROOT to an unpacked release, or ONNXRUNTIME_URL "
    "and ONNXRUNTIME_SHA256 to download one; README.md has an example.")
endif()
message(STATUS "ONNX Runtime: ${ONNXRUNTIME_LIBRARY}")
target_include_directories(runtime::runtime SYSTEM INTERFACE "${ONNXRUNTIME_INCLUDE}")
target_link_libraries(runtime::runtime INTERFACE "${ONNXRUNTIME_LIBRARY}")
