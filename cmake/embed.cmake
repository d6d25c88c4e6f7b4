# cmake -DOUT=FILE.c -DDIR=FOLDER -P embed.cmake: the chat page's files as C arrays.
set(code "/* Made from ${DIR} by cmake/embed.cmake. */\n")
foreach(kind html js css)
  file(READ ${DIR}/chat.${kind} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND code "extern const unsigned char kd_page_${kind}_data[];\n"
         "extern const unsigned long kd_page_${kind}_bytes;\n"
         "const unsigned char kd_page_${kind}_data[] = {${bytes}};\n"
         "const unsigned long kd_page_${kind}_bytes = sizeof kd_page_${kind}_data;\n")
endforeach()
file(WRITE ${OUT} "${code}")
