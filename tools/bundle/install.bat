@echo off
rem Windows: find a Python that fits, and let install.py do the rest. No network is used.
rem   install.bat [--to FOLDER]
setlocal
set WANTED=
if exist "%~dp0python-version.txt" set /p WANTED=<"%~dp0python-version.txt"
if not defined WANTED (
  echo error: python-version.txt is missing or empty: the bundle was not copied whole. Copy it again. 1>&2
  exit /b 2
)
py -%WANTED% -c "" >nul 2>&1
if not errorlevel 1 (
  py -%WANTED% -I "%~dp0install.py" %*
  exit /b
)
python -c "import sys; sys.exit('%%d.%%d' %% sys.version_info[:2] != '%WANTED%')" >nul 2>&1
if not errorlevel 1 (
  python -I "%~dp0install.py" %*
  exit /b
)
echo error: this bundle needs Python %WANTED%, which was not found. Install it and run this again. 1>&2
exit /b 2
