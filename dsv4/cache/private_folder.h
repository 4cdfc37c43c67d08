// Folders and files that no other user could have written. Whoever may write the folder of a cache
// could put a text of his choice before another user's conversation: the hashes in its files find
// damage, not intent.
//
// Access control lists are not read.

#pragma once

#include <string>

namespace dsv4 {

// Makes the folder, for this user only, where there is none. Throws kBadInput for one that belongs
// to another user (root's are trusted) or that group or others may write, kIo where the system
// refuses. A link is followed only where `may_be_link`.
void make_private_folder(const std::string& path, bool may_be_link);

// A descriptor of the file, which is made where it is missing and `make` is set, readable by the
// owner only; -1 with errno. A link is not followed (ELOOP), and a file of another user, or one
// that is no regular file, is not opened (EPERM).
int open_private_file(const std::string& path, bool make);

}  // namespace dsv4
