# cmake -DFROM=FILE -DTO=FILE -DNAME=NAME -P embed.cmake: the bytes of a file as a C array and its length.
file(READ ${FROM} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "((0x..,){32})" "\\1\n" bytes "${bytes}")
file(WRITE ${TO} "#include <stddef.h>\n\nextern const unsigned char ${NAME}[];\nextern const size_t ${NAME}_length;\nconst unsigned char ${NAME}[] = {\n${bytes}};\nconst size_t ${NAME}_length = sizeof ${NAME};\n")
