"""What profilers and checkers print, understood; and what follows from it. Nothing here touches a file or a process."""
